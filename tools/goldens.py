"""Compare the texts of two versions of Gesso: the same requests and seeds, run by a commit and by the working tree.

    python -m tools.goldens HEAD~1                   # every public method, command and endpoint, on the CPU
    python -m tools.goldens main --device cuda       # captured passes, too
    python -m tools.goldens main --only http         # cases whose name contains this
    python -m tools.goldens main --settle 0          # with this default of the setting in both versions

A refactoring keeps all of them. The requests are made by this file for both versions, through public names only. The
exit status is 1 if any answer differs. Nothing is stored: both versions run now, on this machine.
"""

import argparse
import base64
import dataclasses
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PUZZLE = ROOT / "gesso" / "demo" / "puzzle.jpg"
TOOLS = json.loads((ROOT / "gesso" / "demo" / "book_table.json").read_text(encoding="utf-8"))
SEEDS = (1, 2)
QUESTION = [{"role": "user", "content": "What can you do?"}]
BOOKING = [{"role": "user", "content": "Book a table at Luigi for 4 people at 19:30, on the terrace."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "seats": {"type": "integer"}},
    "required": ["city", "seats"],
}
BEFORE = "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        "
AFTER = "\n\n    def length(self):\n        return hypot(self.x, self.y)\n"
# Fields of HTTP answers that differ in every run.
VOLATILE = {
    "id", "created", "created_at", "completed_at", "item_id", "response_id", "sequence_number", "tool_use_id",
    "call_id", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "version", "modified_at",
    "digest", "time_to_first_text", "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
}  # fmt: skip

# Where the default of the setting `settle` is written: in Python, and in versions whose server had another one.
SETTLE = {
    "gesso/settings.py": r"(settle: int = setting\(\s*)\d+",
    "gesso/serve/settings.py": r"(settle: int = )\d+",
    "gesso/cli/serve.py": r'(SETTINGS\["settle"\]\)\] = )\d+',
}

Case = Callable[[], Any]


# --- the cases ----------------------------------------------------------------------------------------------------


def write(way: str) -> dict[str, str]:
    """Return the setting `write`, or what it was in versions before it."""
    from gesso.settings import SETTINGS

    former = {"tokens": "autoregressive", "verified": "verified"}
    return {"write": way} if "write" in SETTINGS else {"sampler": former[way]}


def text_cases(g: Any) -> Iterator[tuple[str, Case]]:
    """Yield the cases of one way of writing each, for `generate` and `chat`."""
    ways: dict[str, dict[str, Any]] = {
        "canvas": {},
        "canvas, fast": {"preset": "fast"},
        "canvas, settled": {"settle": 1},
        "canvas, top_p": {"top_p": 0.9, "greed": 0.2},
        "tokens": write("tokens"),
        "tokens, greedy": {**write("tokens"), "greed": 1.0},
        "verified": {**write("verified"), "greed": 1.0},
        "stop": {"stop": ["\n\n"]},
        "pins": {"pins": {3: 300, 9: 301}},
        "logprobs": {"top_logprobs": 2},
    }
    for seed in SEEDS:
        for way, options in ways.items():
            yield (
                f"python generate {way}, seed {seed}",
                lambda s=seed, o=options: g.generate("def mean(values):\n    ", max_new_tokens=96, seed=s, **o),
            )
        constraints: dict[str, dict[str, Any]] = {
            "schema": {"json_schema": SCHEMA},
            "regex": {"regex": "[a-z]{3,12} [0-9]{2}"},
            "choice": {"choice": ["yes", "no", "perhaps"]},
            "grammar": {"grammar": 'root ::= "(" root ")" | [a-z]+'},
        }
        for name, constraint in constraints.items():
            yield (
                f"python generate {name}, seed {seed}",
                lambda s=seed, c=constraint: g.generate("The answer: ", max_new_tokens=64, seed=s, **c),
            )
        yield f"python chat, seed {seed}", lambda s=seed: g.chat(QUESTION, seed=s)
        yield f"python chat schema, seed {seed}", lambda s=seed: g.chat(BOOKING, json_schema=SCHEMA, seed=s)
        yield f"python chat tools, seed {seed}", lambda s=seed: g.chat(BOOKING, tools=TOOLS, seed=s)
        yield (
            f"python chat thinking, seed {seed}",
            lambda s=seed: g.chat(QUESTION, thinking=True, temperature=0, seed=s),
        )
        yield (
            f"python stream chat, seed {seed}",
            lambda s=seed: [(event.kind, getattr(event, "text", None)) for event in g.stream_chat(QUESTION, seed=s)],
        )
        yield (
            f"python chat required tool, seed {seed}",
            lambda s=seed: g.chat(QUESTION, tools=TOOLS, tool_choice="required", seed=s),
        )
        yield (
            f"python stream, seed {seed}",
            lambda s=seed: [
                (event.kind, getattr(event, "text", None)) for event in g.stream("import ", max_new_tokens=64, seed=s)
            ],
        )


def other_cases(g: Any, sudoku: Any, adapter: Path) -> Iterator[tuple[str, Case]]:
    """Yield the cases of infill, edit, decide, batches, images and adapters."""
    for seed in SEEDS:
        yield f"python infill prompt, seed {seed}", lambda s=seed: g.infill(BEFORE, AFTER, max_new_tokens=6, seed=s)
        yield (
            f"python infill pinned, seed {seed}",
            lambda s=seed: g.infill(BEFORE, AFTER, max_new_tokens=12, method="pinned", candidates=2, seed=s),
        )
        yield (
            f"python infill regex, seed {seed}",
            lambda s=seed: g.infill("a = ", "\n", max_new_tokens=8, regex="[0-9]{2,4}", candidates=2, seed=s),
        )
        yield f"python infill holes, seed {seed}", lambda s=seed: g.infill_holes(["a = ", " + ", "\n"], seed=s)
        yield f"python edit, seed {seed}", lambda s=seed: g.edit("The sky is green today.", (11, 16), seed=s)
        yield (
            f"python edit half, seed {seed}",
            lambda s=seed: g.edit("def f(a, b):\n    return a + b\n", (0, 20), level=0.5, seed=s),
        )
        yield (
            f"python image, seed {seed}",
            lambda s=seed: sudoku.chat(
                [
                    {
                        "role": "user",
                        "content": [{"type": "image", "image": str(PUZZLE)}, {"type": "text", "text": "Solve."}],
                    }
                ],
                max_new_tokens=96,
                seed=s,
            ),
        )
    yield "python decide", lambda: g.decide("The capital of France is", [" Paris", " Rome"])
    yield "python decide chat", lambda: g.decide(QUESTION, ["yes", "no"])

    def batch() -> list[Any]:
        prompts = ["import ", "def fib(n):", "class Point:", "# sort"]
        mixed = [g.request(prompt, max_new_tokens=64, seed=seed) for seed in SEEDS for prompt in prompts]
        return list(g.run([*mixed, g.request("x = ", max_new_tokens=32, seed=5, json_schema=SCHEMA)]))

    yield "python batch of nine", batch

    def adapted() -> list[Any]:
        g.load_adapter("random", str(adapter))
        texts = [g.generate("import ", max_new_tokens=64, seed=seed, adapter="random") for seed in SEEDS]
        g.unload_adapter("random")
        return texts

    yield "python adapter", adapted


def command_cases(device: str) -> Iterator[tuple[str, Case]]:
    """Yield the cases of the command line."""
    hole = ROOT / "gesso" / "demo" / "point.txt"
    tools = ROOT / "gesso" / "demo" / "book_table.json"
    commands: dict[str, tuple[list[str], str]] = {
        "generate": (["generate", "import ", "--max-new-tokens", "48"], ""),
        "chat": (["chat", "--max-new-tokens", "64"], "What can you do?"),
        "chat --tools": (["chat", "--tools", str(tools)], BOOKING[0]["content"]),
        "infill": (["infill", str(hole), "--max-new-tokens", "6"], ""),
        "decide": (["decide", "import numpy as ", "--choice", "np", "--choice", "pd"], ""),
    }
    for name, (arguments, text) in commands.items():
        seed = [] if name == "decide" else ["--seed", "1"]
        yield f"command {name}", lambda a=[*arguments, *seed], t=text: output([*a, "--device", device], t)
    grid = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
    yield "command sudoku", lambda: output(["sudoku", grid, "--seed", "7", "--device", device], "").splitlines()[:9]


def http_cases(port: int) -> Iterator[tuple[str, Case]]:
    """Yield the cases of every endpoint that writes or reads text, whole and streamed."""
    text = {"prompt": "import ", "max_tokens": 48, "seed": 1}
    chat = {"messages": QUESTION, "seed": 1}
    image = base64.b64encode(PUZZLE.read_bytes()).decode()
    look = [
        {"type": "text", "text": "Solve."},
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{image}"}},
    ]
    schema = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}
    ollama_chat = {"model": "gesso", "messages": QUESTION, "options": {"seed": 1}, "stream": False}
    responses = {"model": "gesso", "input": "What can you do?", "seed": 1}
    messages = {"model": "gesso", "messages": QUESTION, "max_tokens": 64, "seed": 1}
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "completions": ("/v1/completions", text),
        "completions n": ("/v1/completions", {**text, "n": 2}),
        "completions logprobs": ("/v1/completions", {**text, "logprobs": 2}),
        "completions echo": ("/v1/completions", {"prompt": "import os", "echo": True, "logprobs": 1, "max_tokens": 0}),
        "completions suffix": ("/v1/completions", {"prompt": BEFORE, "suffix": AFTER, "max_tokens": 6, "seed": 1}),
        "completions regex": ("/v1/completions", {**text, "regex": "[a-z]{3,12}"}),
        "completions verified": ("/v1/completions", {**text, "diffusion": {**write("verified"), "greed": 1.0}}),
        "completions adapter": ("/v1/completions", {**text, "model": "random"}),
        "chat": ("/v1/chat/completions", chat),
        "chat schema": ("/v1/chat/completions", {"messages": BOOKING, "seed": 1, "response_format": schema}),
        "chat tools": ("/v1/chat/completions", {"messages": BOOKING, "seed": 1, "tools": TOOLS}),
        "chat image": (
            "/v1/chat/completions",
            {"model": "gesso-sudoku", "messages": [{"role": "user", "content": look}], "max_tokens": 96, "seed": 1},
        ),
        "edits": ("/v1/edits", {"input": "The sky is green.", "span": [11, 16], "seed": 1}),
        "decide": ("/v1/decide", {"prompt": "The capital of France is", "choices": [" Paris", " Rome"]}),
        "responses": ("/v1/responses", responses),
        "messages": ("/v1/messages", messages),
        "completions tokens": ("/v1/completions", {**text, "diffusion": write("tokens"), "temperature": 0.5}),
        "completions stop": ("/v1/completions", {**text, "stop": ["\n"], "diffusion": {"preset": "fast"}}),
        "completions pins": ("/v1/completions", {**text, "diffusion": {"pins": {"3": 300}, "settle": 1}}),
        "completions several": ("/v1/completions", {**text, "prompt": ["import ", "def f("], "n": 2}),
        "completions overflow": ("/v1/completions", {"prompt": [300] * 4096}),
        "completions lowered": ("/v1/completions", {"prompt": [300] * 4090, "max_tokens": 50, "seed": 1}),
        "completions unknown": ("/v1/completions", {**text, "diffusion": {"nonsense": 1}}),
        "completions impossible": ("/v1/completions", {**text, "regex": "a{400}", "max_tokens": 8}),
        "chat required": ("/v1/chat/completions", {**chat, "tools": TOOLS, "tool_choice": "required"}),
        "chat two constraints": ("/v1/chat/completions", {**chat, "response_format": schema, "regex": "a"}),
        "chat thinking": ("/v1/chat/completions", {**chat, "thinking": True, "n": 2, "logprobs": True}),
        "chat continued": (
            "/v1/chat/completions",
            {**chat, "messages": [*QUESTION, {"role": "assistant", "content": "I"}], "continue_final_message": True},
        ),
        "edits instruction": (
            "/v1/edits",
            {"input": "x = 1\n", "span": [0, 5], "instruction": "Add 1.", "level": 0.5, "seed": 1},
        ),
        "decide chat": ("/v1/decide", {"messages": QUESTION, "choices": ["yes", "no"]}),
        "responses schema": (
            "/v1/responses",
            {**responses, "text": {"format": {"type": "json_schema", "name": "t", "schema": SCHEMA}}},
        ),
        "messages tools": ("/v1/messages", {**messages, "tools": [{"name": "f", "input_schema": SCHEMA}]}),
        "infill": ("/infill", {"input_prefix": BEFORE, "input_suffix": AFTER, "n_predict": 6, "seed": 1}),
        "completion": ("/completion", {"prompt": "import ", "n_predict": 16, "seed": 1}),
        "api generate suffix": (
            "/api/generate",
            {"prompt": BEFORE, "suffix": AFTER, "options": {"seed": 1, "num_predict": 6}, "stream": False},
        ),
        "api generate raw": (
            "/api/generate",
            {"prompt": "import ", "raw": True, "options": {"seed": 1, "num_predict": 16}, "stream": False},
        ),
        "api chat format": ("/api/chat", {**ollama_chat, "format": SCHEMA}),
        "api show": ("/api/show", {"model": "gesso"}),
        "tokenize chat": ("/tokenize", {"messages": QUESTION}),
        "count tokens": ("/v1/messages/count_tokens", {"model": "gesso", "messages": QUESTION}),
        "api generate": (
            "/api/generate",
            {"model": "gesso", "prompt": "Hello!", "options": {"seed": 1, "num_predict": 48}, "stream": False},
        ),
        "api chat": ("/api/chat", ollama_chat),
        "tokenize": ("/tokenize", {"prompt": "import os"}),
        "detokenize": ("/detokenize", {"tokens": [300, 301]}),
    }
    for name, (path, body) in bodies.items():
        yield f"http {name}", lambda p=path, b=body: without_volatile(json.loads(post(port, p, b)))
    streamed: dict[str, tuple[str, dict[str, Any]]] = {
        "completions": ("/v1/completions", text),
        "chat": ("/v1/chat/completions", chat),
        "chat tools": ("/v1/chat/completions", {"messages": BOOKING, "seed": 1, "tools": TOOLS}),
        "responses": ("/v1/responses", responses),
        "messages": ("/v1/messages", messages),
        "api chat": ("/api/chat", ollama_chat),
        "chat schema": ("/v1/chat/completions", {"messages": BOOKING, "seed": 1, "response_format": schema}),
        "completions tokens": ("/v1/completions", {**text, "diffusion": write("tokens")}),
        "completions logprobs": ("/v1/completions", {**text, "logprobs": 2}),
        "completion": ("/completion", {"prompt": "import ", "n_predict": 16, "seed": 1}),
    }
    for name, (path, body) in streamed.items():
        yield f"http {name}, streamed", lambda p=path, b=body: stream_text(post(port, p, {**b, "stream": True}))

    def at_once() -> list[Any]:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda seed: post(port, "/v1/completions", {**text, "seed": seed}), range(8)))
        return [json.loads(answer)["choices"] for answer in answers]

    yield "http eight at once", at_once


def loading_cases(port: int) -> Iterator[tuple[str, Case]]:
    """Yield the cases of a server that has just been started, and writes token by token."""
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "completions": ("/v1/completions", {"prompt": "import ", "max_tokens": 16, "seed": 1}),
        "chat schema": (
            "/v1/chat/completions",
            {
                "messages": BOOKING,
                "seed": 1,
                "response_format": {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}},
            },
        ),
        "chat tools": ("/v1/chat/completions", {"messages": BOOKING, "seed": 1, "tools": TOOLS}),
        "decide": ("/v1/decide", {"prompt": "The capital of France is", "choices": [" Paris", " Rome"]}),
        "infill": ("/infill", {"input_prefix": BEFORE, "input_suffix": AFTER, "n_predict": 6, "seed": 1}),
    }

    def at_once() -> list[Any]:
        with ThreadPoolExecutor(len(bodies)) as pool:
            answers = list(pool.map(lambda body: post(port, *body), bodies.values()))
        return [without_volatile(json.loads(answer)) for answer in answers]

    yield "http while loading", at_once


# --- running one version ------------------------------------------------------------------------------------------


def write_answers(out: Path, device: str, adapter: Path, only: str) -> None:
    """Run all cases with the `gesso` that is imported here, and write their answers as JSON."""
    import gesso

    g = gesso.load(device=device)
    sudoku = gesso.load("gesso-sudoku", device=device)
    answers: dict[str, Any] = {}

    def run(cases: Iterator[tuple[str, Case]]) -> None:
        for name, case in cases:
            if only in name:
                print(f"  {name}", file=sys.stderr, flush=True)
                try:
                    answers[name] = plain(case())
                except Exception as error:  # an error is an answer, too
                    answers[name] = f"{type(error).__name__}: {error}"

    run(text_cases(g))
    run(other_cases(g, sudoku, adapter))
    run(command_cases(device))
    if any(only in name for name, _ in http_cases(0)):
        with server(device, adapter) as port:
            wait_ready(port)
            run(http_cases(port))
    if any(only in name for name, _ in loading_cases(0)):
        with server(device, adapter, "--write", "tokens") as port:
            run(loading_cases(port))
    out.write_text(json.dumps(answers), encoding="utf-8")


def plain(value: Any) -> Any:
    """Return a result as JSON values, without the durations of usage."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: plain(part) for name, part in named.items() if "seconds" not in name}
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def output(arguments: list[str], text: str) -> str:
    """Return what a command prints."""
    command = [sys.executable, "-m", "gesso", *arguments]
    ended = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, check=False)
    return ended.stdout if ended.returncode == 0 else f"exit {ended.returncode}: {ended.stderr[-500:]}"


@contextmanager
def server(device: str, adapter: Path, *options: str) -> Iterator[int]:
    """Start a server of the bundled models with an adapter, and yield its port, maybe before it is ready."""
    command = [sys.executable, "-m", "gesso", "serve", "--port", "0", "--device", device, *options, "--adapter"]
    process = subprocess.Popen([*command, f"random={adapter}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split("http://127.0.0.1:")
        if len(address) < 2:
            raise RuntimeError("the server did not start")
        port = int(address[1].split()[0])
        yield port
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def wait_ready(port: int) -> None:
    while request(port, "GET", "/ready").status != 200:
        time.sleep(0.1)


def request(port: int, method: str, path: str, body: bytes | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request(method, path, body, {"Content-Type": "application/json"})
    return connection.getresponse()


def post(port: int, path: str, body: dict[str, Any]) -> str:
    response = request(port, "POST", path, json.dumps(body).encode())
    content = response.read().decode()
    return content if response.status == 200 else json.dumps({"status": response.status, "body": content})


def without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_volatile(part) for key, part in value.items() if key not in VOLATILE}
    return [without_volatile(part) for part in value] if isinstance(value, list) else value


def stream_text(stream: str) -> str:
    """Return the text of a stream. The number of events depends on time, their text does not."""
    pieces = []
    for line in stream.splitlines():
        data = line.removeprefix("data: ")
        if data.startswith("{"):
            pieces.append(increment(json.loads(data)))
    return "".join(pieces)


def increment(event: dict[str, Any]) -> str:
    """Return the new text of one event, in any dialect."""
    if event.get("choices"):
        choice = event["choices"][0]
        delta = choice.get("delta", choice)
        calls = [call["function"].get("arguments", "") for call in delta.get("tool_calls") or ()]
        return "".join([delta.get("content") or delta.get("text") or "", *calls])
    delta = event.get("delta")
    if isinstance(delta, dict):
        return str(delta.get("text", "") or delta.get("partial_json", ""))
    if isinstance(delta, str):
        return delta
    return str(event.get("message", {}).get("content", "")) if "done" in event else ""


# --- comparing two versions ---------------------------------------------------------------------------------------


def make_adapter(directory: Path) -> Path:
    """Write an adapter with random values for the bundled model."""
    import torch

    import gesso
    from gesso import adapters
    from gesso.adapters.sites import adapter_sites

    model = gesso.load(device="cpu").model
    settings = adapters.LoraSettings(rank=2, targets=tuple(adapters.TARGETS))
    adapters.add(model, settings, "random", seed=1)
    generator = torch.Generator().manual_seed(1)
    for site in adapter_sites(model).values():
        lora = site.get("random")
        assert lora is not None
        lora.B.data.normal_(0, 0.3, generator=generator)
    adapters.save(model, directory, settings, "random")
    return directory


def answers_of(tree: Path, out: Path, device: str, adapter: Path, only: str) -> dict[str, Any]:
    """Run all cases in a process that imports `gesso` from a tree."""
    command = [sys.executable, str(ROOT / "tools" / "goldens.py"), "--write", str(out), "--adapter", str(adapter)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([*command, "--device", device, "--only", only], check=True, env=environment, cwd=tree)
    answers: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return answers


def set_settle(tree: Path, settle: int) -> None:
    """Change the default of the setting `settle` in the files of a tree."""
    for name, default in SETTLE.items():
        file = tree / name
        text = file.read_text(encoding="utf-8")
        file.write_text(re.sub(default, rf"\g<1>{settle}", text), encoding="utf-8")


def compare(commit: str, device: str, only: str, settle: int | None) -> int:
    """Print the cases in which the working tree answers differently from a commit, and return the exit status."""
    with tempfile.TemporaryDirectory(prefix="gesso-goldens-") as scratch:
        earlier = Path(scratch) / "tree"
        subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "--detach", "--quiet", earlier, commit], check=True)
        try:
            adapter = make_adapter(Path(scratch) / "adapter")
            now = ROOT
            if settle is not None:
                now = Path(scratch) / "now"
                shutil.copytree(ROOT / "gesso", now / "gesso")
                set_settle(earlier, settle)
                set_settle(now, settle)
            before = answers_of(earlier, Path(scratch) / "before.json", device, adapter, only)
            after = answers_of(now, Path(scratch) / "after.json", device, adapter, only)
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", earlier], check=False)
    different = [name for name in before if before[name] != after[name]]
    for name in different:
        print(f"{name}\n  {commit}: {json.dumps(before[name])[:600]}\n  now: {json.dumps(after[name])[:600]}")
    failed = sum(isinstance(answer, str) and "Error: " in answer for answer in after.values())
    print(f"{len(before) - len(different)} of {len(before)} answers equal; {failed} are errors")
    return 1 if different else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the texts of two versions of Gesso.")
    parser.add_argument("commit", nargs="?", help="the other version, such as HEAD~1")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--settle", type=int, help="the default of this setting in both versions")
    parser.add_argument("--write", type=Path, help="run the cases of one version only, and write them to this file")
    parser.add_argument("--adapter", type=Path, help="with --write: the adapter to load")
    arguments = parser.parse_args()
    if arguments.write is not None:
        write_answers(arguments.write, arguments.device, arguments.adapter, arguments.only)
        return 0
    if arguments.commit is None:
        parser.error("name the commit to compare with, such as HEAD~1")
    return compare(arguments.commit, arguments.device, arguments.only, arguments.settle)


if __name__ == "__main__":
    sys.exit(main())
