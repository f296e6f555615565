"""Denial-of-service attacks on a server, to measure and test its defences.

Each attack is a function of a target and a deadline (`time.monotonic`). It sends a bounded number of requests, closes
its connections, undoes what it did to processes, and returns the statuses it got. `attack_table.py` lists the attacks
with their expected outcomes. Attack only servers that you run yourself.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

from gesso import bundled
from tools.hostile_cases import cases
from tools.load import processes, wire
from tools.load.target import Outcome, Target, abandon_all, ask_all
from tools.load.wire import CHAT, COMPLETIONS, EDITS, Body

TOOLS = 60_000
HOSTILE = 58  # constraints
CONNECTIONS = 300  # of `incomplete_heads`
ENDLESS: dict[str, Any] = {"steps": 1000, "stopping": "fixed"}
USER = [{"role": "user", "content": "Hello"}]


def _tools(count: int) -> list[dict[str, Any]]:
    return [{"name": f"f{number}"} for number in range(count)]


# --- parsing and validation -------------------------------------------------------------------------------------------


def many_tools(target: Target, until: float) -> Outcome:
    """Declare 60,000 tools and require a call, so that names are compared pairwise."""
    body = {"messages": USER, "tools": _tools(TOOLS), "tool_choice": "required"}
    return ask_all(target, until, [(CHAT, body)])


def abandoned_tools(target: Target, until: float) -> Outcome:
    """Abandon six requests to /tokenize with 60,000 tools, each of which keeps a thread busy."""
    return abandon_all(target, until, 6 * [("/tokenize", {"messages": USER, "tools": _tools(TOOLS)})], stays=0.5)


def abandoned_schemas(target: Target, until: float) -> Outcome:
    """Abandon six requests with a 90 KB schema whose `oneOf` has 800 members of 3,000 required names."""
    return abandon_all(target, until, 6 * [(CHAT, with_schema(wide_schema()))], stays=0.5)


def wide_schema(members: int = 800) -> dict[str, Any]:
    """Return a schema whose members must be distinguished pairwise, with 3,000 required names each."""
    wide = {"type": "object", "required": [f"name_{number}" for number in range(3000)]}
    each = [{"$ref": "#/$defs/wide", "properties": {"kind": {"const": number}}} for number in range(members)]
    return {"$defs": {"wide": wide}, "required": ["kind"], "oneOf": each}


def with_schema(schema: Any) -> dict[str, Any]:
    return {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


def many_errors(target: Target, until: float) -> Outcome:
    """Send 600,000 values of the wrong type, each of which validation reports several times."""
    return ask_all(target, until, [(COMPLETIONS, many_wrong_prompts(600_000))])


def many_wrong_prompts(count: int) -> bytes:
    return b'{"prompt": [' + b",".join(count * [b"{}"]) + b"]}"


def long_texts(target: Target, until: float) -> Outcome:
    """Send 7 MB of text outside the prompt: as an instruction, content parts and a tool description."""
    text = "all work and no play " * 333_000
    edit = {"input": "The sky is green.", "span": [11, 16], "instruction": text}
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}], "max_tokens": 16}
    tools = {"messages": USER, "tools": [{"name": "f", "description": text}], "max_tokens": 16}
    return ask_all(target, until, [(EDITS, edit), (CHAT, parts), (CHAT, tools)], at_once=3)


def deep_json(target: Target, until: float) -> Outcome:
    """Nest arrays and objects to several depths wherever a body may contain any value."""
    return ask_all(target, until, [one for depth in (100, 900, 5_000, 100_000) for one in nested(depth)])


def nested(depth: int) -> list[tuple[str, Body]]:
    """Return bodies nested `depth` levels deep: in a prompt, a message, a tool and a schema."""
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
    """Send integers of 5,000 digits, which Python refuses to parse, as a prompt, a seed and a length."""
    digits = b"1" * 5000
    fields = (b'"prompt": [%s]', b'"prompt": "x", "seed": %s', b'"prompt": "x", "max_tokens": %s')
    return ask_all(target, until, [(COMPLETIONS, b"{" + one % digits + b"}") for one in fields])


# --- numeric settings -------------------------------------------------------------------------------------------------


def overflowing_temperature(target: Target, until: float) -> Outcome:
    """Request temperatures that overflow float32, so that a pass fails after the prompts are encoded."""
    outcome, began = Outcome(), time.monotonic()
    prompt = "x = 1\n" * 300  # encoded over several steps, in which other requests join the batch
    while time.monotonic() < min(until, began + 15):
        bodies = [completion(prompt=f"{number}{prompt}", t_max=1e308, t_min=1e308) for number in range(4)]
        for status, count in ask_all(target, until, [(COMPLETIONS, body) for body in bodies], 4).statuses.items():
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
    """Request temperatures that are denormal or zero in float32, with logprobs and with a regex."""
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
    """Request a canvas of 4,000 positions and 1,000 steps, which would slow down every step of the batch."""
    body = completion(max_tokens=4000, **ENDLESS | {"canvas_length": 4000})
    return ask_all(target, min(until, time.monotonic() + 15), [(COMPLETIONS, body)])


def scored_candidates(target: Target, until: float) -> Outcome:
    """Request 16 candidates after a prompt of about 3,800 tokens; all candidates are scored at the end."""
    prompt, suffix = of_tokens(target, 3800), "\nreturn x\n"
    more = {"suffix": suffix, "best_of": 16}
    return ask_all(target, until, [(COMPLETIONS, completion(prompt, max_tokens=16, more=more, steps=2))])


def of_tokens(target: Target, count: int) -> str:
    """Return a text of about `count` tokens."""
    line, sample = "x = 1\n", 100
    answer = wire.ask(target.url, target.key, "/tokenize", {"prompt": line * sample})
    each = answer.json["count"] / sample if answer.status == 200 else 6
    return line * int(count / each)


# --- constraints ------------------------------------------------------------------------------------------------------


def abandoned_regexes(target: Target, until: float) -> Outcome:
    """Abandon 30 regular expressions that each take ten seconds to compile."""
    bodies = [(COMPLETIONS, completion(more={"regex": slow_regex(number)})) for number in range(30)]
    return abandon_all(target, until, bodies, stays=0.3)


def slow_regex(number: int) -> str:
    return rf"\w{{1000}}{number}"


def starred_grammar(target: Target, until: float) -> Outcome:
    """Send a grammar with 100,000 stars after one rule."""
    return ask_all(target, until, [(COMPLETIONS, completion(more={"grammar": 'root ::= "a"' + "*" * 100_000}))])


def hostile_constraints(target: Target, until: float) -> Outcome:
    """Send schemas, patterns and grammars of exponential size, and let those that compile write 64 tokens."""
    bodies: list[tuple[str, Body]] = []
    for _, name, value in cases(HOSTILE, seed=2):
        with contextlib.suppress(RecursionError):  # nested too deeply for json.dumps
            more = with_schema(value) if name == "json_schema" else {"messages": USER, name: value}
            json.dumps(more)
            bodies.append((CHAT, {**more, "max_tokens": 64}))
    return ask_all(target, until, bodies)


def harmless_constraints(target: Target, until: float) -> Outcome:
    """Send as many small schemas, all different: others wait for the batch that they share with these, too."""
    asked = ({"type": "array", "items": {"type": "integer"}, "minItems": least} for least in range(HOSTILE))
    return ask_all(target, until, [(CHAT, {**with_schema(schema), "max_tokens": 64}) for schema in asked])


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
    """Forge an address in X-Forwarded-For: without keys, the queue identifies clients by address."""
    outcome, forged = Outcome(), "203.0.113.7"
    body = completion()
    outcome.add(wire.ask(target.url, None, COMPLETIONS, body, timeout=20, extra={"X-Forwarded-For": forged}))
    time.sleep(0.2)
    believed = target.log is not None and forged in target.log.read_text(errors="replace")
    outcome.notes.append(f"the forged address was {'believed' if believed else 'ignored'}")
    return outcome


UMLAUT_KEY = "schlüssel"


def non_ascii_key(target: Target, until: float) -> Outcome:
    """Use a non-ASCII key in UTF-8. It should work, or the server should refuse to start with it."""
    outcome = Outcome()
    outcome.add(wire.ask(target.url, UMLAUT_KEY, "/v1/models", timeout=20))
    return outcome


# --- engine faults ----------------------------------------------------------------------------------------------------


def long_message(target: Target, until: float) -> Outcome:
    """Make the engine send a message above the limit, on a server with a limit of 16 KiB."""
    more = {"stream": True}
    body = completion(max_tokens=64, more=more, canvas_length=64, steps=4, drafts={"candidates": 20})
    outcome = ask_all(target, min(until, time.monotonic() + 10), [(COMPLETIONS, body)])
    outcome.notes.append(f"/ready is {wire.ask(target.url, None, '/ready').status}")
    return outcome


def stopped_engine(target: Target, until: float) -> Outcome:
    """Stop the engine process with SIGSTOP, like a hung driver, and measure when the server notices."""
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
                break  # another engine has started
            time.sleep(0.2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine, signal.SIGCONT)
    outcome.seconds = time.monotonic() - began
    return outcome


def killed_server(target: Target, until: float) -> Outcome:
    """Kill the server while it compiles a constraint. None of its processes may survive."""
    outcome, at_rest = Outcome(), processes.descendants(target.process)
    connection = wire.send(target.url, target.key, COMPLETIONS, completion(more={"regex": slow_regex(0)}))
    began = time.monotonic()
    while len(started := processes.descendants(target.process)) <= len(at_rest) and time.monotonic() < began + 5:
        time.sleep(0.05)
    time.sleep(0.5)  # let the compilation start
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
    """Watch a server whose checkpoint fails to load with an unexpected error."""
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
    outcome.notes.append(f"/health reports: {message[:80]}" if message else "/health gives no reason")
    return outcome


def make_unreadable(directory: Path) -> Path:
    """Copy the bundled model with an index that is nested too deeply for a JSON parser."""
    shutil.copytree(bundled.directory(), directory)
    (directory / "model.safetensors.index.json").write_text("[" * 100_000)
    return directory
