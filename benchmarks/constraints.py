"""Measure the cost of a constraint per step, on one core.

    python -m benchmarks.constraints --fields 50

The search for the likeliest text runs at the size of the real vocabulary. Scores are random, which is the worst case:
every step violates the constraint everywhere. Words are random too, with the lengths, single bytes and JSON punctuation
of a real vocabulary. A constraint that allows everything is measured beside a step of gesso-mini.
"""

import random
import string
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import gesso
from benchmarks.arguments import parser_of, run
from gesso.cli.terminal import print_json
from gesso.constraints.automaton import START, Automaton
from gesso.constraints.guide import Guide
from gesso.constraints.reach import Reach
from gesso.constraints.schema.compile import schema_term
from gesso.constraints.search import Scores, likeliest
from gesso.constraints.words import Words
from gesso.engine.engine import Engine
from gesso.engine.guided import Candidates, scores_of

if TYPE_CHECKING:
    from gesso.api import Gesso

VOCABULARY, CANVAS = 262_144, 256
KINDS: tuple[dict[str, Any], ...] = (
    {"type": "string"},
    {"type": "integer"},
    {"type": "boolean"},
    {"enum": ["red", "green", "blue", "none of these"]},
    {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
)
EOS = 1


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("constraints", __doc__)
    parser.add_argument("--fields", type=int, default=50, help="properties of the JSON schema")
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    asked = parser.parse_args(arguments)
    print_json(measure(asked.fields, asked.steps))


def measure(fields: int, steps: int, vocabulary: int = VOCABULARY, canvas: int = CANVAS) -> dict[str, Any]:
    """Measure a schema of `fields` required properties, alternating between five types."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        g = gesso.load(device="cpu")
        return {**_measure_search(fields, steps, vocabulary, canvas), **_measure_step(g, steps, canvas)}
    finally:
        torch.set_num_threads(threads)


def _measure_search(fields: int, steps: int, vocabulary: int, canvas: int) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {f"field_number_{i}": KINDS[i % len(KINDS)] for i in range(fields)},
        "required": [f"field_number_{i}" for i in range(fields)],
    }
    words = random_words(vocabulary)
    started = time.perf_counter()
    guide = Guide(Automaton(schema_term(schema).term), words, frozenset([EOS]))
    compiled = time.perf_counter() - started
    searches, gathers, reach = [], [], Reach(guide, {}, canvas + guide.shortest)
    for step in range(steps + 1):
        logits_CV = torch.randn(canvas, vocabulary, generator=torch.Generator().manual_seed(step))
        gathered = partial(_gathered, logits_CV, guide)
        gathers.append(_milliseconds(gathered))
        searches.append(_milliseconds(partial(likeliest, reach, START, 0, gathered())))
    return {
        "vocabulary": vocabulary, "canvas": canvas, "fields": fields, "states": len(guide.automaton),
        "compile_seconds": round(compiled, 3), "first_search_ms": round(searches[0], 2),
        "search_ms": round(median(searches[1:]), 2), "search_ms_worst": round(max(searches[1:]), 2),
        "candidates_ms": round(median(gathers[1:]), 2),
    }  # fmt: skip


def _gathered(logits_CV: Tensor, guide: Guide) -> Scores:
    return scores_of(Candidates.of(logits_CV), np.zeros(len(logits_CV), np.float32), guide)


def _measure_step(g: "Gesso", steps: int, canvas: int) -> dict[str, Any]:
    """Measure steps with and without a constraint, alternating in one run.

    Every text matches `(?s).*`. Only text without line breaks matches `.*`, so a model that predicts line breaks is
    corrected at every step.
    """
    constraints = {"free": None, "any_text": "(?s).*", "any_line": ".*"}
    settings: dict[str, Any] = {
        "max_new_tokens": canvas,
        "canvas_length": canvas,
        "steps": steps + 2,
        "stopping": "fixed",
        "seed": 1,
    }
    engines = {name: Engine(g.model, g.decode) for name in constraints}
    for name, regex in constraints.items():
        request = g.request("def fib(n):", regex=regex, **settings)
        engines[name].submit(replace(request, free_first=False))
    times: dict[str, list[float]] = {name: [] for name in constraints}
    for _ in range(steps + 2):
        for name, engine in engines.items():
            times[name].append(_milliseconds(engine.step))
    found = {name: median(taken[2:]) for name, taken in times.items()}
    shares = {f"{name}_share": round(found[name] / found["free"] - 1, 4) for name in ("any_text", "any_line")}
    return {"step_ms": round(found["free"], 1), **shares}


def _milliseconds(work: Callable[[], Any]) -> float:
    """Return the process time of a call, which excludes other processes."""
    started = time.process_time()
    work()
    return 1000 * (time.process_time() - started)


def random_words(size: int) -> Words:
    rng = random.Random(0)
    found = dict.fromkeys(bytes([byte]) for byte in range(256))
    for joint in ('",', '":', '": ', '"}', '"]', '","', '": "', '{"', "},", "],", '":"', ", ", ": "):
        found[joint.encode()] = None
    while len(found) < size - 2:
        word = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 10)))
        found[rng.choice(("", " ", " ", "_")).encode() + rng.choice((word, word, word.title())).encode()] = None
    return Words(dict(enumerate(found, start=2)), size)


if __name__ == "__main__":
    run(main)
