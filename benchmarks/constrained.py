"""Measure the steps of requests under a JSON schema, alone and beside free requests.

    python -m benchmarks.constrained -m random:26b-a4b --quantize fp8

Weights are random, so every step violates the schema and is corrected: the worst case. Words are random too, as in
`benchmarks.constraints`. The bundled tokenizer gives most tokens of a larger vocabulary no text, and a search among
those would be too fast.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.arguments import add_model_options, model_options, parser_of, run
from benchmarks.constraints import KINDS, random_words
from gesso import loading
from gesso.bench.device import wait
from gesso.bench.model import sizes_in
from gesso.bench.requests import requests
from gesso.cli.terminal import print_json
from gesso.engine.events import Draft
from gesso.engine.request import Request

NAMES = ("title", "count", "ready", "color", "tags", "owner", "size", "done")
SCHEMA = {
    "type": "object",
    "properties": {name: KINDS[i % len(KINDS)] for i, name in enumerate(NAMES)},
    "required": list(NAMES),
    "additionalProperties": False,
}
BATCHES, PROMPT, STEPS = (1, 8), 1024, 48
BESIDE = 4  # free requests, and as many constrained ones
WARM = 3  # equal runs before the measured one, which compile and capture everything


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("constrained", __doc__)
    add_model_options(parser)
    parser.add_argument("--batches", metavar="N,N", help="batch sizes; default: 1,8")
    parser.add_argument("--prompt", type=int, help="tokens per prompt")
    asked = parser.parse_args(arguments)
    print_json(bench(asked.model, batches=asked.batches, prompt=asked.prompt, **model_options(asked)))


def bench(
    name: str | None, *, device: str | None, dtype: str | None, quantize: str | None, memory: float | str,
    batches: str | None, prompt: int | None, threads: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure a model."""
    sizes, where = sizes_in(batches) or BATCHES, loading.find_device(device)
    g = loading.load(
        name,
        device=where,
        dtype=dtype,
        quantize=quantize,
        adapter=None,
        max_batch=max(*sizes, 2 * BESIDE),
        max_length=None,
        write="canvas",
        threads=threads,
        memory=memory,
    )
    return measure(g, sizes, prompt or PROMPT, STEPS)


def measure(
    g: Any, batches: Sequence[int], prompt: int, steps: int, beside: int = BESIDE, warm: int = WARM
) -> dict[str, Any]:
    """Return milliseconds per step of a request, by batch size, free and constrained, and of both side by side.

    Each run is preceded by `warm` equal ones.
    """
    timed = partial(_timed, g, prompt=prompt, steps=steps, warm=warm)
    g.guides.words = random_words(g.config.vocab_size)
    alone = []
    for batch in batches:
        (free, _), (_, constrained) = timed(batch, 0), timed(0, batch)
        alone.append({"batch": batch, "free_ms": free, "constrained_ms": constrained, "times": constrained / free})
    only, _ = timed(2 * beside, 0)
    free, constrained = timed(beside, beside)
    return {
        "device": torch.cuda.get_device_name(g.model.device) if g.model.device.type == "cuda" else "cpu",
        "quantized": g.config.quantization,
        "fields": len(NAMES),
        "prompt": prompt,
        "steps": steps,
        "alone": alone,
        "beside": {
            "free": beside,
            "constrained": beside,
            "free_ms": free,
            "constrained_ms": constrained,
            "free_ms_beside_free": only,  # if the constrained requests were free
            "free_share_of_speed": only / free,
        },
    }


def _timed(g: Any, free: int, constrained: int, prompt: int, steps: int, warm: int) -> tuple[float, float]:
    """Return the milliseconds per step of a free and of a constrained request; not a number if there is none."""
    for _ in range(warm):
        _run(g, _requests(g, free, constrained, prompt, steps))
    return _run(g, _requests(g, free, constrained, prompt, steps))


def _requests(g: Any, free: int, constrained: int, prompt: int, steps: int) -> list[Request]:
    """Return requests of one canvas each. The constrained ones are corrected from the first step on."""
    length = g.config.canvas_length
    made = requests(g, free + constrained, prompt, length, steps=steps, stopping="fixed")
    guide = g.guides.guide(json_schema=SCHEMA)
    return [*made[:free], *(replace(each, guide=guide, free_first=False) for each in made[free:])]


def _run(g: Any, made: Sequence[Request]) -> tuple[float, float]:
    """Measure the time in which all requests denoise, without the reading of their prompts."""
    ids = [g.engine.submit(request) for request in made]
    drafts = dict.fromkeys(ids, 0)
    while min(drafts.values()) < 2:
        _count(g.engine.step(), drafts)
    wait(g.model.device)
    before, began = dict(drafts), time.perf_counter()
    while len(g.engine.running) == len(ids):
        _count(g.engine.step(), drafts)
    wait(g.model.device)
    seconds = time.perf_counter() - began
    while g.engine.busy:
        g.engine.step()
    steps = {request_id: drafts[request_id] - before[request_id] for request_id in ids}
    kinds = [
        [steps[i] for i, each in zip(ids, made, strict=True) if (each.guide is None) is free] for free in (True, False)
    ]
    free, constrained = (1e3 * seconds * len(kind) / sum(kind) if kind else float("nan") for kind in kinds)
    return free, constrained


def _count(events: Sequence[Any], drafts: dict[int, int]) -> None:
    for event in events:
        if isinstance(event, Draft):
            drafts[event.request_id] += 1


if __name__ == "__main__":
    run(main)
