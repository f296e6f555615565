"""Plans: answers that need several requests, round by round.

A plan is a generator. It yields a round of requests that may run side by side, receives their results in the same
order, and returns the answer. `gesso.engine.driver` runs plans on an engine.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from gesso.engine.events import Likely, Result, Scored, Usage
from gesso.engine.request import Request, Score
from gesso.errors import InputError

SEEDS = 2**64

T = TypeVar("T")
Round = Sequence[Request | Score]
Output = Result | Scored  # Scored: of a Score, and of a Request that compares texts
Plan = Generator[Round, Sequence[Output], T]


def generate(requests: Sequence[Request]) -> Plan[list[Result]]:
    """Run several requests side by side and return their results in order."""
    return [cast(Result, output) for output in (yield requests)] if requests else []


def score(
    prompt: Sequence[int], texts: Sequence[Sequence[int]], max_length: int, adapter: str | None
) -> Plan[list[float]]:
    """Return the log-probability of each text after the prompt, in nats, by the causal encoder.

    An empty text has 0. A text that exceeds the context of `max_length` tokens is not read and has minus infinity:
    encoding a generated text again can give more tokens than it was generated with.
    """
    known = {tuple(text): -math.inf if text else 0.0 for text in texts}
    longest = max_length - len(prompt) + 1  # the last token of a text is not read
    readable = tuple(text for text in known if 0 < len(text) <= longest)
    if readable:
        (output,) = yield [Score(prompt=tuple(prompt), texts=readable, adapter=adapter)]
        known |= zip(readable, cast(Scored, output).log_likelihoods, strict=True)
    return [known[tuple(text)] for text in texts]


def compare(request: Request) -> Plan[Scored]:
    """Return the log-probabilities of the texts that a request compares."""
    (output,) = yield [request]
    return cast(Scored, output)


@dataclass(frozen=True)
class Echo:
    """A prompt, possibly with the token after it, and log-probabilities of all tokens but the first."""

    tokens: tuple[int, ...]
    likely: tuple[Likely, ...]
    usage: Usage


def echo(prompt: Sequence[int], top_logprobs: int, new: int, adapter: str | None) -> Plan[Echo]:
    """Return the log-probability of each token of a prompt by the causal encoder.

    With `new` = 1, add the most probable token after the prompt.
    """
    # The last token of a text is not read, so any token will do: its place shows the prediction after the prompt.
    text = (*prompt[1:], prompt[0])
    top = max(1, top_logprobs)
    (output,) = yield [Score(prompt=tuple(prompt[:1]), texts=(text,), top_logprobs=top, adapter=adapter)]
    *likely, after = cast(Scored, output).likely[0]
    (token, value), tokens = after.top[0], tuple(prompt)
    if new:
        likely, tokens = [*likely, Likely(value, after.top)], (*tokens, token)
    usage = Usage(prompt_tokens=len(prompt), completion_tokens=new)
    return Echo(tokens, tuple(Likely(one.token, one.top[:top_logprobs]) for one in likely), usage)


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
