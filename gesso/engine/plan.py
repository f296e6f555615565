"""Plans: answers that need several requests, round by round.

A plan is a generator. It yields a round of requests that may run side by side, receives their results in the same
order, and returns the answer. `gesso.engine.driver` runs plans on an engine.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from gesso.engine.events import Result, Usage
from gesso.engine.request import Request, Score
from gesso.errors import InputError

SEEDS = 2**64

T = TypeVar("T")
Round = Sequence[Request | Score]
Output = Result | tuple[float, ...]  # of a Request; of a Score
Plan = Generator[Round, Sequence[Output], T]


def generate(requests: Sequence[Request]) -> Plan[list[Result]]:
    """Run several requests side by side and return their results in order."""
    return [cast(Result, output) for output in (yield requests)] if requests else []


def score(prompt: Sequence[int], texts: Sequence[Sequence[int]], max_length: int) -> Plan[list[float]]:
    """Return the log-probability of each text after the prompt, in nats, by the causal encoder.

    An empty text has 0. A text that exceeds the context of `max_length` tokens is not read and has minus infinity:
    encoding a generated text again can give more tokens than it was generated with.
    """
    known = {tuple(text): -math.inf if text else 0.0 for text in texts}
    longest = max_length - len(prompt) + 1  # the last token of a text is not read
    readable = tuple(text for text in known if 0 < len(text) <= longest)
    if readable:
        (output,) = yield [Score(prompt=tuple(prompt), texts=readable)]
        known |= zip(readable, cast(tuple[float, ...], output), strict=True)
    return [known[tuple(text)] for text in texts]


def candidates_of(request: Request, count: int) -> list[Request]:
    """Return `count` copies of a request; candidate i has the request's seed + i."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InputError(f"candidates must be a whole number of at least 1, got {count!r}")
    return [replace(request, seed=(request.seed + i) % SEEDS) for i in range(count)]


def total_usage(usages: Sequence[Usage], completion_tokens: int) -> Usage:
    """Return one usage for several requests: the prompt of the first, the work of all."""
    return Usage(
        usages[0].prompt_tokens,
        usages[0].cached_tokens,
        completion_tokens,
        sum(usage.denoising_steps for usage in usages),
        sum(usage.canvases for usage in usages),
        sum(usage.redrawn for usage in usages),
    )
