"""What a constraint costs a step, at the size of the real vocabulary: the search for the likeliest text, on one core.

The scores are random, which is the worst case: at every step everything has to be put right. The words are made up, as
long as those of a real vocabulary and with its digits, single bytes and runs of JSON punctuation.
"""

import random
import string
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from gesso.engine.runner import scores_of
from gesso.guide.automaton import START, compile_regex
from gesso.guide.guide import Guide
from gesso.guide.schema import schema_regex
from gesso.guide.words import Words

VOCABULARY, CANVAS = 262_144, 256
KINDS: tuple[dict[str, Any], ...] = (
    {"type": "string"},
    {"type": "integer"},
    {"type": "boolean"},
    {"enum": ["red", "green", "blue", "none of these"]},
    {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
)
EOS = 1


def measure(fields: int, steps: int) -> dict[str, Any]:
    """`fields` properties, all required, of five kinds in turn."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(fields, steps)
    finally:
        torch.set_num_threads(threads)


def _measure(fields: int, steps: int) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {f"field_number_{i}": KINDS[i % len(KINDS)] for i in range(fields)},
        "required": [f"field_number_{i}" for i in range(fields)],
    }
    words = made_up_words(VOCABULARY)
    started = time.perf_counter()
    guide = Guide(compile_regex(schema_regex(schema)), words, frozenset([EOS]))
    compiled = time.perf_counter() - started
    _ = guide.moves, guide.tokens_left_S
    prepared = time.perf_counter() - started - compiled
    searches, gathers, after = [], [], guide.shortest
    for step in range(steps + 1):
        logits_CV = torch.randn(CANVAS, VOCABULARY, generator=torch.Generator().manual_seed(step))
        gathered = partial(scores_of, logits_CV, torch.zeros(CANVAS), guide)
        gathers.append(_milliseconds(gathered))
        searches.append(_milliseconds(partial(guide.best, START, gathered(), after)))
    return {
        "vocabulary": VOCABULARY, "canvas": CANVAS, "fields": fields, "states": len(guide.automaton),
        "compile_seconds": round(compiled, 3), "prepare_seconds": round(prepared, 3),
        "search_ms": round(median(searches[1:]), 2), "search_ms_worst": round(max(searches[1:]), 2),
        "candidates_ms": round(median(gathers[1:]), 2), "trivial_walk_ms": round(_trivial(words), 3),
    }  # fmt: skip


def _trivial(words: Words) -> float:
    """The same for a constraint that everything satisfies: both texts of a step are walked and left as they are."""
    guide = Guide(compile_regex("(?s).*"), words, frozenset([EOS]))
    tokens = random.Random(0).choices([t for t, word in words.bytes_of.items() if word.isascii()], k=CANVAS)
    guide.fits(START, tokens, 0)
    return median(_milliseconds(lambda: (guide.fits(START, tokens, 0), guide.fits(START, tokens, 0))) for _ in range(9))


def _milliseconds(work: Callable[[], Any]) -> float:
    """Of one core's time: what else the machine does is not counted."""
    started = time.process_time()
    work()
    return 1000 * (time.process_time() - started)


def made_up_words(size: int) -> Words:
    rng = random.Random(0)
    found = dict.fromkeys(bytes([byte]) for byte in range(256))
    for joint in ('",', '":', '": ', '"}', '"]', '","', '": "', '{"', "},", "],", '":"', ", ", ": "):
        found[joint.encode()] = None
    while len(found) < size - 2:
        word = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 10)))
        found[rng.choice(("", " ", " ", "_")).encode() + rng.choice((word, word, word.title())).encode()] = None
    return Words(dict(enumerate(found, start=2)), size)
