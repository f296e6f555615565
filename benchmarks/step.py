"""Measure the time of a step by kernel and by group of kernels, or on a CPU by operation.

    python -m benchmarks.step -m random:26b-a4b --quantize fp8
    python -m benchmarks.step --json > before.json; python -m benchmarks.step --compare before.json

Torch's profiler records some steps of a request as in `gesso bench`, away from the start of a canvas. Concurrent
kernels count in full; `between_ms` is the time in which nothing ran.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.adapters import attach_random
from benchmarks.arguments import add_model_options, add_rules, model_options, parser_of, rules_of, run
from benchmarks.groups import group_bytes, groups, render
from gesso import loading
from gesso.bench.device import wait
from gesso.bench.model import READ_VALUES, RULES, STEPS, USUAL, check_rules, read_speed
from gesso.bench.requests import requests
from gesso.cli.terminal import print_json, print_styled
from gesso.errors import InputError

BEFORE, WATCHED = 6, 4  # steps of a canvas before the profile, and in it
WARM = 2  # canvases that compile and capture everything


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("step", __doc__)
    add_model_options(parser)
    add_rules(parser)
    parser.add_argument("--batch", type=int, default=1, help="requests at once")
    parser.add_argument("--prompt", type=int, help="tokens per prompt")
    parser.add_argument("--adapters", type=int, default=0, help="random adapters that the requests take in turn")
    parser.add_argument("--rank", type=int, default=16, help="of the adapters")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="an earlier run with --json")
    asked = parser.parse_args(arguments)
    before = None if asked.compare is None else earlier(asked.compare)
    found = measure(
        asked.model,
        batch=asked.batch,
        prompt=asked.prompt,
        adapters=asked.adapters,
        rank=asked.rank,
        rules=rules_of(asked),
        **model_options(asked),
    )
    print_json(found) if asked.json else print_styled(lambda console: render(found, console, before))


@dataclass(frozen=True)
class Span:
    """A kernel or operation, in microseconds. `own` excludes the operations it called."""

    name: str
    start: float
    end: float
    own: float


def measure(
    name: str | None, *, device: str | None, dtype: str | None, quantize: str | None, memory: float | str,
    batch: int = 1, prompt: int | None = None, adapters: int = 0, rank: int = 16, threads: int | None = None,
    rules: Mapping[str, Any] = RULES,
) -> dict[str, Any]:  # fmt: skip
    """Measure steps. adapters: how many random adapters the requests take in turn, of this rank."""
    check_rules(rules)
    where = loading.find_device(device)
    g = loading.load(
        name,
        device=where,
        dtype=dtype,
        quantize=quantize,
        adapter=None,
        max_batch=batch,
        max_length=None,
        write="canvas",
        threads=threads,
        memory=memory,
    )
    new = (WARM + 1) * g.config.canvas_length
    names = attach_random(g, adapters, rank) if adapters else [None]
    options: dict[str, Any] = {"steps": STEPS, **rules}
    made = requests(g, batch, prompt or USUAL[where.type][1], new, **options)
    for request, adapter in zip(made, cycle(names), strict=False):
        g.engine.submit(replace(request, adapter=adapter))
    for _ in range(WARM * STEPS + BEFORE):
        g.engine.step()
    wait(where)
    kind = ProfilerActivity.CUDA if where.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[kind]) as found:
        for _ in range(WATCHED):
            g.engine.step()
        wait(where)
    spans = _spans(found, where)
    measured = summary(spans)
    if where.type == "cuda":
        speed = read_speed(where, READ_VALUES["cuda"])
        measured["memory_TBps"] = speed / 1e12
        measured["groups"] = groups(spans, WATCHED, group_bytes(g.model, g.engine.cache), speed)
    return measured


def earlier(path: Path) -> dict[str, Any]:
    """Read the result of an earlier run with `--json`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path} as the output of benchmarks.step --json: {error}") from None
    if isinstance(found, dict) and "ms_a_step" in found:
        found["ms_per_step"] = found["ms_a_step"]  # the former name
    if not isinstance(found, dict) or not {"ms_per_step", "rows"} <= found.keys():
        raise InputError(f"{path} is not the output of benchmarks.step --json")
    return found


def _spans(found: Any, device: torch.device) -> list[Span]:
    gpu = device.type == "cuda"
    return [
        Span(
            event.name,
            event.time_range.start,
            event.time_range.end,
            event.time_range.elapsed_us() if gpu else event.self_cpu_time_total,
        )
        for event in found.events()
        if event.device_type.name == device.type.upper()
    ]


def summary(spans: Iterable[Span], steps: int = WATCHED) -> dict[str, Any]:
    spans = sorted(spans, key=lambda span: span.start)
    by_name: dict[str, list[float]] = defaultdict(list)
    busy, until = 0.0, spans[0].start
    for span in spans:
        by_name[span.name].append(span.own)
        busy += max(span.end - max(span.start, until), 0.0)
        until = max(until, span.end)
    rows = [
        {"name": name, "calls": len(times) / steps, "us": sum(times) / len(times), "ms": sum(times) / steps / 1e3}
        for name, times in by_name.items()
    ]
    whole = until - spans[0].start
    return {
        "ms_per_step": whole / steps / 1e3,
        "between_ms": (whole - busy) / steps / 1e3,
        "calls": len(spans) / steps,
        "rows": sorted(rows, key=lambda row: -row["ms"]),
    }


if __name__ == "__main__":
    run(main)
