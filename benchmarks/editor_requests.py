"""Measure the requests that editors send while one types, at a server on this machine.

    python -m benchmarks.editor_requests --count 20

The requests are those of llama.vim, llama.vscode and Continue, as their sources build them. Each is sent `count` times,
one after the other and with different seeds, after one that is not counted. `processor` is the processor time of the
server per request, which other work on the machine changes less than the time until the answer. `parses` counts the
answers with which the Python file parses.

After that, lines of Python's standard library are left out, and filled through /infill and by `Gesso.infill`, which is
what `gesso infill` runs.
"""

import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

import gesso
from benchmarks import arguments
from gesso.bench.server import ServerProcess, running_server
from gesso.eval.python_infill import PythonInfill, parses
from tools.load.processes import descendants, processor_seconds

BEFORE = "class Point:\n    def __init__(self, x, y):\n        self.x = x\n"
AFTER = '\n\n    def __repr__(self):\n        return f"Point({self.x}, {self.y})"\n'
CHUNK = {"text": "def scale(point, by):\n    return Point(point.x * by, point.y * by)\n", "filename": "scale.py"}

# autoload/llama.vim at a1c8e6e, llama#fim: its default configuration.
VIM: dict[str, Any] = {
    "id_slot": 0,
    "input_prefix": BEFORE,
    "input_suffix": AFTER,
    "input_extra": [CHUNK | {"time": [12, 345678]}],
    "prompt": "        ",
    "n_predict": 128,
    "stop": [],
    "n_indent": 8,
    "top_k": 40,
    "top_p": 0.90,
    "samplers": ["top_k", "top_p", "infill"],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 250,
    "response_fields": [
        "content",
        "timings/prompt_n",
        "timings/prompt_ms",
        "timings/prompt_per_token_ms",
        "timings/prompt_per_second",
        "timings/predicted_n",
        "timings/predicted_ms",
        "timings/predicted_per_token_ms",
        "timings/predicted_per_second",
        "truncated",
        "tokens_cached",
    ],
}
# autoload/llama.vim, s:ring_update: extra context that later requests may need.
VIM_RING: dict[str, Any] = {
    "id_slot": 0,
    "input_prefix": "",
    "input_suffix": "",
    "input_extra": [CHUNK | {"time": [12, 345678]}],
    "prompt": "",
    "n_predict": 0,
    "temperature": 0.0,
    "samplers": [],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 1,
    "t_max_predict_ms": 1,
    "response_fields": [""],
}
# src/llama-server.ts of llama.vscode at 3938fb3, createRequestPayload: its default settings.
VSCODE: dict[str, Any] = {
    "id_slot": 0,
    "input_prefix": BEFORE,
    "input_suffix": AFTER,
    "input_extra": [CHUNK | {"time": 1790000000000}],
    "prompt": "",
    "n_predict": 128,
    "n_cmpl": 3,
    "top_k": 40,
    "top_p": 0.99,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "n_indent": 8,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 500,
}
VSCODE_PREPARATION: dict[str, Any] = {
    "id_slot": 0,
    "input_prefix": "",
    "input_suffix": "",
    "input_extra": [CHUNK | {"time": 1790000000000}],
    "prompt": "",
    "n_predict": 0,
    "samplers": [],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1,
}
# core/llm/llms/LlamaCpp.ts of Continue at 0c38ecf, with the template of docs/guides/editors.md. Fields that JavaScript
# has as undefined are not sent.
CONTINUE: dict[str, Any] = {
    "prompt": f"<|fim_prefix|>{BEFORE}        <|fim_suffix|>{AFTER}<|fim_middle|>",
    "stream": True,
    "n_predict": 128,
    "stop": ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "/src/", "#- coding: utf-8", "```"],
    "temperature": 0.01,
}

REQUESTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama.vim": ("/infill", VIM),
    "llama.vim, next line": ("/infill", VIM | {"t_max_predict_ms": 1000}),
    "llama.vim, context": ("/infill", VIM_RING),
    "llama.vscode": ("/infill", VSCODE),
    "llama.vscode, one answer": ("/infill", VSCODE | {"n_cmpl": 1}),
    "Continue": ("/completion", CONTINUE),
}
SECONDS = 300.0  # for one answer


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    seconds: list[float]
    processor: float  # seconds per request, of all processes of the server
    parses: int


@dataclass(frozen=True, kw_only=True)
class Lines:
    """How many of the files parse with a line that was filled through each of both ways."""

    count: int
    by_server: int
    by_library: int
    equal: int  # lines with the same text


def measure(server: ServerProcess, count: int) -> list[Row]:
    """Return a row per kind of request."""
    rows = []
    with httpx.Client(base_url=server.url, timeout=SECONDS) as client:
        for name, (path, body) in REQUESTS.items():
            _answer(client, path, body)
            seconds: list[float] = []
            parsed = 0
            used_before = _processor_seconds(server)
            for seed in range(count):
                began = time.perf_counter()
                text = _answer(client, path, body | {"seed": seed})
                seconds.append(time.perf_counter() - began)
                prompt = body["prompt"] if path == "/infill" else "        "
                parsed += parses(f"{BEFORE}{prompt}{text}{AFTER}")
            processor = (_processor_seconds(server) - used_before) / count
            rows.append(Row(name=name, seconds=seconds, processor=processor, parses=parsed))
    return rows


def compare(server: ServerProcess, model: str | None, count: int) -> Lines:
    """Fill missing lines through /infill and by `Gesso.infill`, with equal seeds."""
    task = PythonInfill()
    filler = gesso.load(model)
    by_server = by_library = equal = 0
    with httpx.Client(base_url=server.url, timeout=SECONDS) as client:
        for seed, item in enumerate(task.items("test", count, seed=0)):
            before, after = task.hole(item)
            body = {"input_prefix": before, "input_suffix": after, "n_predict": 64, "stop": ["\n"], "seed": seed}
            line = _answer(client, "/infill", body)
            expected = filler.infill(before, after, max_new_tokens=64, stop="\n", seed=seed).text
            by_server += task.score(item, line)["parses"] == 1
            by_library += task.score(item, expected)["parses"] == 1
            equal += line == expected
    return Lines(count=count, by_server=by_server, by_library=by_library, equal=equal)


def _processor_seconds(server: ServerProcess) -> float:
    return sum(map(processor_seconds, (server.pid, *descendants(server.pid))))


def _answer(client: httpx.Client, path: str, body: Mapping[str, Any]) -> str:
    """Return the text of an answer: of the first one, or of all parts of a stream."""
    response = client.post(path, json=body)
    response.raise_for_status()
    if body.get("stream"):
        parts = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line]
    else:
        answer = response.json()
        parts = answer[:1] if isinstance(answer, list) else [answer]
    return "".join(part.get("content", "") for part in parts)


def main() -> None:
    parser = arguments.parser_of("editor_requests", __doc__)
    parser.add_argument("--count", type=int, default=20, help="requests of each kind")
    parser.add_argument("--lines", type=int, default=50, help="missing lines to fill")
    parser.add_argument("--model", "-m", help="a checkpoint; default: gesso-mini")
    asked = parser.parse_args()
    with running_server(*(["--model", asked.model] if asked.model else [])) as server:
        server.wait_ready()
        rows = measure(server, asked.count)
        lines = compare(server, asked.model, asked.lines)
    print(f"{'request':28}{'p50':>8}{'longest':>10}{'processor':>11}{'parses':>10}")
    for row in rows:
        median = statistics.median(row.seconds)
        times = f"{median:6.2f} s{max(row.seconds):8.2f} s{row.processor:9.2f} s"
        print(f"{row.name:28}{times}{row.parses:6} of {len(row.seconds)}")
    print(f"files that parse: {lines.by_server} of {lines.count} through /infill, {lines.by_library} by gesso infill")
    print(f"lines with the same text: {lines.equal} of {lines.count}")


if __name__ == "__main__":
    arguments.run(main)
