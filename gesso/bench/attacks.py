"""Denial-of-service attacks on a server of our own, so that its defences can be measured and tested.

Each attack is a function of a target and a deadline (`time.monotonic`). It sends a bounded number of requests, closes
its connections, undoes what it did to processes, and returns the statuses it got. `ATTACKS` lists them with the outcome
expected of a server that withstands them. Attack only servers that you run yourself.
"""

import contextlib
import os
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gesso import bundled as box
from gesso.bench import processes, wire
from gesso.bench.wire import CHAT, COMPLETIONS, EDITS, Answer, Body

TOOLS = 60_000
CONNECTIONS, FILES = 300, 256  # attack (f): sockets, and how many files the server may open
ENDLESS: dict[str, Any] = {"steps": 1000, "stopping": "fixed"}
USER = [{"role": "user", "content": "Hello"}]


@dataclass(frozen=True)
class Target:
    url: str
    key: str | None  # the attacker's
    pid: int | None = None  # of the server process, where it is known
    log: Path | None = None

    @property
    def process(self) -> int:
        if self.pid is None:
            raise ValueError("this attack needs the server's process id")
        return self.pid

    def ask(self, path: str, body: Body, until: float) -> Answer:
        return wire.ask(self.url, self.key, path, body, timeout=max(0.1, until - time.monotonic()))


@dataclass
class Outcome:
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0  # the longest answer
    notes: list[str] = field(default_factory=list)

    def add(self, answer: Answer) -> None:
        self.statuses[str(answer.status or "none")] += 1
        self.seconds = max(self.seconds, answer.seconds)
        if answer.message and answer.message[:120] not in self.notes and len(self.notes) < 6:
            self.notes.append(answer.message[:120])


Run = Callable[[Target, float], Outcome]


def _ask_all(target: Target, until: float, asked: Sequence[tuple[str, Body]], at_once: int = 1) -> Outcome:
    outcome = Outcome()
    with ThreadPoolExecutor(at_once) as pool:
        for answer in pool.map(lambda one: target.ask(one[0], one[1], until), asked):
            outcome.add(answer)
    return outcome


def _abandon_all(target: Target, until: float, asked: Sequence[tuple[str, Body]], stays: float) -> Outcome:
    """Send each request, and hang up after `stays` seconds without having read an answer."""
    outcome = Outcome()
    for path, body in asked:
        left = until - time.monotonic()
        if left < stays:
            break
        try:
            connection = wire.send(target.url, target.key, path, body, timeout=left)
        except OSError as error:
            outcome.statuses["none"] += 1
            outcome.notes.append(str(error))
            continue
        time.sleep(stays)
        wire.abandon(connection)
        outcome.statuses["abandoned"] += 1
    return outcome


def _tools(count: int) -> list[dict[str, Any]]:
    return [{"name": f"f{number}"} for number in range(count)]


# --- parsing and validation -------------------------------------------------------------------------------------------


def many_tools(target: Target, until: float) -> Outcome:
    """Declare 60,000 tools and require a call: names are compared pairwise."""
    body = {"messages": USER, "tools": _tools(TOOLS), "tool_choice": "required"}
    return _ask_all(target, until, [(CHAT, body)])


def abandoned_tools(target: Target, until: float) -> Outcome:
    """Abandon six requests to /tokenize with 60,000 tools: each keeps a thread busy."""
    return _abandon_all(target, until, 6 * [("/tokenize", {"messages": USER, "tools": _tools(TOOLS)})], stays=0.5)


def abandoned_schemas(target: Target, until: float) -> Outcome:
    """Abandon six requests with a 90 KB schema whose `oneOf` has 800 members of 3,000 required names."""
    return _abandon_all(target, until, 6 * [(CHAT, with_schema(wide_schema()))], stays=0.5)


def wide_schema(members: int = 800) -> dict[str, Any]:
    """Return a schema whose members have to be told apart pairwise, with 3,000 required names each."""
    wide = {"type": "object", "required": [f"name_{number}" for number in range(3000)]}
    each = [{"$ref": "#/$defs/wide", "properties": {"kind": {"const": number}}} for number in range(members)]
    return {"$defs": {"wide": wide}, "required": ["kind"], "oneOf": each}


def with_schema(schema: Any) -> dict[str, Any]:
    return {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


def many_errors(target: Target, until: float) -> Outcome:
    """Send 600,000 values of the wrong type: validation reports each of them several times."""
    return _ask_all(target, until, [(COMPLETIONS, many_wrong_prompts(600_000))])


def many_wrong_prompts(count: int) -> bytes:
    return b'{"prompt": [' + b",".join(count * [b"{}"]) + b"]}"


def long_texts(target: Target, until: float) -> Outcome:
    """Send 7 MB of text where the size of the prompt is not checked: an instruction, content parts, tools."""
    text = "all work and no play " * 333_000
    edit = {"input": "The sky is green.", "span": [11, 16], "instruction": text}
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}], "max_tokens": 16}
    tools = {"messages": USER, "tools": [{"name": "f", "description": text}], "max_tokens": 16}
    return _ask_all(target, until, [(EDITS, edit), (CHAT, parts), (CHAT, tools)], at_once=3)


def deep_json(target: Target, until: float) -> Outcome:
    """Nest arrays and objects in the places where a body may hold any value, to several depths."""
    return _ask_all(target, until, [one for depth in (100, 900, 5_000, 100_000) for one in nested(depth)])


def nested(depth: int) -> list[tuple[str, Body]]:
    """Return bodies that nest `depth` levels: as a prompt, in a message, a tool and a schema."""
    array = b"[" * depth + b"]" * depth
    schema = b'{"items": ' * depth + b"true" + b"}" * depth
    head = b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 8, '
    form = b'"response_format": {"type": "json_schema", "json_schema": {"schema": '
    return [
        (COMPLETIONS, b'{"prompt": ' + array + b"}"),
        (CHAT, b'{"messages": [{"role": "user", "content": ' + array + b"}]}"),
        (CHAT, head + b'"tools": [{"name": "f", "parameters": ' + schema + b"}]}"),
        (CHAT, head + form + schema + b"}}}"),
    ]


def long_integers(target: Target, until: float) -> Outcome:
    """Send integers of 5,000 digits, which Python refuses to read from text, as a prompt, a seed and a length."""
    digits = b"1" * 5000
    fields = (b'"prompt": [%s]', b'"prompt": "x", "seed": %s', b'"prompt": "x", "max_tokens": %s')
    return _ask_all(target, until, [(COMPLETIONS, b"{" + one % digits + b"}") for one in fields])


# --- numeric settings -------------------------------------------------------------------------------------------------


def overflowing_temperature(target: Target, until: float) -> Outcome:
    """Ask for temperatures that float32 cannot hold: the pass fails when their prompts have been read."""
    outcome, began = Outcome(), time.monotonic()
    prompt = "x = 1\n" * 300  # read over several steps, in which others enter the batch
    while time.monotonic() < min(until, began + 15):
        bodies = [completion(prompt=f"{number}{prompt}", t_max=1e308, t_min=1e308) for number in range(4)]
        for status, count in _ask_all(target, until, [(COMPLETIONS, body) for body in bodies], 4).statuses.items():
            outcome.statuses[status] += count
        outcome.seconds = time.monotonic() - began
        time.sleep(0.5)
    return outcome


def completion(
    prompt: Any = "def f(x):", max_tokens: int = 16, more: dict[str, Any] | None = None, **diffusion: Any
) -> Body:
    settings = {"preset": "fast", "canvas_length": 16, **diffusion}
    return {"prompt": prompt, "max_tokens": max_tokens, "seed": 1, "diffusion": settings} | (more or {})


def vanishing_temperature(target: Target, until: float) -> Outcome:
    """Ask for temperatures that are denormal or zero in float32, with logprobs and with a regex."""
    outcome = Outcome()
    for tiny, more in ((1e-40, {"logprobs": 5}), (1e-46, {"regex": "[a-z]{4,8}"})):
        answer = target.ask(COMPLETIONS, completion(more=more, t_max=tiny, t_min=tiny), until)
        outcome.add(answer)
        with contextlib.suppress(ValueError):
            _ = answer.json
            continue
        outcome.notes.append("the body is not JSON (NaN or Infinity)")
    return outcome


def long_canvas(target: Target, until: float) -> Outcome:
    """Ask for a canvas of 4,000 positions and 1,000 steps; everybody's step then takes as long as this canvas's."""
    body = completion(max_tokens=4000, **ENDLESS | {"canvas_length": 4000})
    return _ask_all(target, min(until, time.monotonic() + 15), [(COMPLETIONS, body)])


def scored_candidates(target: Target, until: float) -> Outcome:
    """Fill a hole with 16 candidates after a prompt of about 3,800 tokens; all of them are scored at the end."""
    prompt, suffix = of_tokens(target, 3800), "\nreturn x\n"
    more = {"suffix": suffix, "best_of": 16}
    return _ask_all(target, until, [(COMPLETIONS, completion(prompt, max_tokens=16, more=more, steps=2))])


def of_tokens(target: Target, count: int) -> str:
    """Return a text of about so many tokens."""
    line, sample = "x = 1\n", 100
    answer = wire.ask(target.url, target.key, "/tokenize", {"prompt": line * sample})
    each = answer.json["count"] / sample if answer.status == 200 else 6
    return line * int(count / each)


# --- constraints ------------------------------------------------------------------------------------------------------


def abandoned_regexes(target: Target, until: float) -> Outcome:
    """Abandon 30 regular expressions that each take ten seconds to compile."""
    bodies = [(COMPLETIONS, completion(more={"regex": slow_regex(number)})) for number in range(30)]
    return _abandon_all(target, until, bodies, stays=0.3)


def slow_regex(number: int) -> str:
    return rf"\w{{1000}}{number}"


def starred_grammar(target: Target, until: float) -> Outcome:
    """Send a grammar with 100,000 stars after one rule."""
    return _ask_all(target, until, [(COMPLETIONS, completion(more={"grammar": 'root ::= "a"' + "*" * 100_000}))])


# --- connections ------------------------------------------------------------------------------------------------------


def incomplete_heads(target: Target, until: float) -> Outcome:
    """Hold 300 connections with half a request head each, on a server that may open 256 files."""
    outcome, connections = Outcome(), []
    written = target.log.stat().st_size if target.log is not None else 0
    try:
        for _ in range(CONNECTIONS):
            try:
                connection = wire.connect(target.url, timeout=2)
                connection.sendall(wire.head(COMPLETIONS, target.key, 10)[:60])
            except OSError:
                outcome.statuses["refused"] += 1
            else:
                connections.append(connection)
        time.sleep(max(0.0, min(15.0, until - time.monotonic())))
        for connection in connections:
            outcome.statuses["closed" if _is_closed(connection) else "held"] += 1
    finally:
        for connection in connections:
            connection.close()
    if target.log is not None:
        outcome.notes.append(f"{(target.log.stat().st_size - written) / 1e6:.1f} MB of log")
    return outcome


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def forged_address(target: Target, until: float) -> Outcome:
    """Claim another address in X-Forwarded-For: without keys, a client's place in the queue goes by its address."""
    outcome, forged = Outcome(), "203.0.113.7"
    body = completion()
    outcome.add(wire.ask(target.url, None, COMPLETIONS, body, timeout=20, extra={"X-Forwarded-For": forged}))
    time.sleep(0.2)
    believed = target.log is not None and forged in target.log.read_text(errors="replace")
    outcome.notes.append(f"the forged address was {'believed' if believed else 'ignored'}")
    return outcome


UMLAUT_KEY = "schlüssel"


def non_ascii_key(target: Target, until: float) -> Outcome:
    """Use a key that is not ASCII, as UTF-8: it should work, or the server should not start with it."""
    outcome = Outcome()
    outcome.add(wire.ask(target.url, UMLAUT_KEY, "/v1/models", timeout=20))
    return outcome


# --- engine faults ----------------------------------------------------------------------------------------------------


def long_message(target: Target, until: float) -> Outcome:
    """Have the engine send a message that is longer than the limit, on a server where that is 16 KiB."""
    more = {"stream": True}
    body = completion(max_tokens=64, more=more, canvas_length=64, steps=4, drafts={"candidates": 20})
    outcome = _ask_all(target, min(until, time.monotonic() + 10), [(COMPLETIONS, body)])
    outcome.notes.append(f"/ready is {wire.ask(target.url, None, '/ready').status}")
    return outcome


def stopped_engine(target: Target, until: float) -> Outcome:
    """Stop the engine process with SIGSTOP, as a hung driver would, and see when the server notices."""
    outcome, began = Outcome(), time.monotonic()
    engine = processes.engine_pid(target.process)
    if engine is None:
        raise ValueError("the server has no engine process")
    os.kill(engine, signal.SIGSTOP)
    try:
        while time.monotonic() < until:
            status = str(wire.ask(target.url, None, "/ready", timeout=5).status)
            if status not in outcome.statuses:
                outcome.notes.append(f"/ready is {status} after {time.monotonic() - began:.1f} s")
            outcome.statuses[status] += 1
            if len(outcome.statuses) > 1 and status == "200":
                break  # there is another engine
            time.sleep(0.2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine, signal.SIGCONT)
    outcome.seconds = time.monotonic() - began
    return outcome


def killed_server(target: Target, until: float) -> Outcome:
    """Kill the server while it compiles a constraint; none of its processes may survive."""
    outcome, at_rest = Outcome(), processes.descendants(target.process)
    connection = wire.send(target.url, target.key, COMPLETIONS, completion(more={"regex": slow_regex(0)}))
    began = time.monotonic()
    while len(started := processes.descendants(target.process)) <= len(at_rest) and time.monotonic() < began + 5:
        time.sleep(0.05)
    time.sleep(0.5)  # into the compilation
    started = sorted({*started, *processes.descendants(target.process)})
    os.kill(target.process, signal.SIGKILL)
    killed = time.monotonic()
    left = processes.wait_until_gone(started, max(0.5, min(until - killed, 3)))
    outcome.statuses["survivors"] = len(left)
    outcome.notes += [f"alive 3 s later: {processes.command_line(pid)[:60]}" for pid in left]
    outcome.seconds = time.monotonic() - killed
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    connection.close()
    return outcome


def unreadable_model(target: Target, until: float) -> Outcome:
    """Watch a server whose checkpoint fails to load with an error that nobody foresaw."""
    outcome, engines, began = Outcome(), set(), time.monotonic()
    message = ""
    while time.monotonic() < min(until, began + 15) and processes.command_line(target.process):
        engine = processes.engine_pid(target.process)
        if engine is not None:
            engines.add(engine)
        health = wire.ask(target.url, None, "/health", timeout=2)
        with contextlib.suppress(ValueError):
            message = message or str(health.json.get("message", ""))
        time.sleep(0.05)
    outcome.statuses["engines started"] = len(engines)
    outcome.seconds = time.monotonic() - began
    running = bool(processes.command_line(target.process))
    outcome.notes.append("the server still restarts its engine" if running else "the server gave up")
    outcome.notes.append(f"/health says: {message[:80]}" if message else "/health gives no reason")
    return outcome


def make_unreadable(directory: Path) -> Path:
    """Copy the bundled model with an index that no JSON reader survives."""
    shutil.copytree(box.directory(), directory)
    (directory / "model.safetensors.index.json").write_text("[" * 100_000)
    return directory


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attack:
    letter: str
    run: Run
    expected: str  # of a server that withstands it
    constrained: bool = False  # the bystander's requests have a constraint
    own_server: bool = False  # needs a server that was started for it: its process id, or the settings below
    keys: tuple[str, ...] = ("good", "bad")
    frame_bytes: int | None = None
    files: int | None = None
    broken: bool = False  # the server is given a checkpoint that does not load
    alone: bool = False  # without a bystander: the server does not outlive it

    @property
    def name(self) -> str:
        return self.run.__name__.replace("_", " ")


ATTACKS = (
    Attack("a", many_tools, "400 or 413"),
    Attack("b", overflowing_temperature, "400; no 500 for others"),
    Attack("c1", abandoned_tools, "nothing is left running"),
    Attack("c2", abandoned_schemas, "nothing is left running", constrained=True),
    Attack("d", many_errors, "400 with one message, little memory"),
    Attack("e", long_canvas, "400"),
    Attack("f", incomplete_heads, "closed; others are let in; little log", own_server=True, files=FILES),
    Attack("g1", abandoned_regexes, "compilers end with their clients", constrained=True),
    Attack("g2", killed_server, "no survivors", own_server=True, alone=True),
    Attack("h", scored_candidates, "200 or 400; others' steps go on"),
    Attack("i", long_texts, "400, before the engine sees it"),
    Attack("j", long_message, "200 or an error; /ready tells the truth", own_server=True, frame_bytes=16_384),
    Attack("k", stopped_engine, "503, then 200 by another engine", own_server=True),
    Attack("l", unreadable_model, "the server exits with the reason", own_server=True, broken=True, alone=True),
    Attack("low", vanishing_temperature, "400, or 200 with JSON"),
    Attack("low", starred_grammar, "400", constrained=True),
    Attack("low", forged_address, "ignored", own_server=True, keys=()),
    Attack("low", non_ascii_key, "200, or refused at the start", own_server=True, keys=("good", "bad", UMLAUT_KEY)),
    Attack("low", deep_json, "200 or 400"),
    Attack("low", long_integers, "400"),
)


def chosen(letters: str | None) -> list[Attack]:
    """Return the attacks named by a comma-separated list of letters, or all of them; `c` means c1 and c2."""
    if letters is None:
        return list(ATTACKS)
    wanted = letters.split(",")
    return [attack for attack in ATTACKS if attack.letter in wanted or attack.letter.rstrip("12") in wanted]
