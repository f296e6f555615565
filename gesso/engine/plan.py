"""Plans: answers that need several requests, round by round.

A plan is a generator. It yields a round of requests that may run side by side, receives their results in the same
order, and returns the answer. `gesso.engine.driver` runs plans on an engine.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from gesso.engine.events import Likely, Result, Scored, Usage
from gesso.engine.request import ATTEMPTS, Request, Score
from gesso.errors import ConstraintError, InputError

SEEDS = 2**64
RETRY_SEED = 0x9E3779B97F4A7C15  # added per attempt; far from the seeds of candidates and choices, which follow closely

T = TypeVar("T")
Round = Sequence[Request | Score]
Output = Result | Scored  # Scored: of a Score, and of a Request that compares texts
Plan = Generator[Round, Sequence[Output], T]


def generate(requests: Sequence[Request], attempts: int = ATTEMPTS) -> Plan[list[Result]]:
    """Run several requests side by side and return their results in order.

    A result that is not valid is never returned: its request runs again with other seeds, and then fails.
    """
    if not requests:
        return []
    results = [cast(Result, output) for output in (yield requests)]
    wrong = _wrong(requests, results)
    for attempt in range(1, attempts):
        if not wrong:
            break
        again = yield [replace(requests[at], seed=retry_seed(requests[at].seed, attempt)) for at in wrong]
        for at, output in zip(list(wrong), again, strict=True):
            result = cast(Result, output)
            usage = total_usage([results[at].usage, result.usage], result.usage.completion_tokens)
            results[at] = replace(result, usage=usage)
        wrong = _wrong(requests, results)
    if wrong:
        raise ConstraintError(next(iter(wrong.values())), attempts)
    return results


def retry_seed(seed: int, attempt: int) -> int:
    """Return the seed of another attempt at an answer; attempt 0 is the first."""
    return (seed + attempt * RETRY_SEED) % SEEDS


def _wrong(requests: Sequence[Request], results: Sequence[Result]) -> dict[int, str]:
    """Return the results that are not valid, by index, with the reason. A text that was cut off is not checked."""
    problems: dict[int, str] = {}
    for at, (request, result) in enumerate(zip(requests, results, strict=True)):
        if request.validate is None or result.finish_reason != "stop" or result.stop is not None:
            continue
        if problem := request.validate(result.tokens, result.text):
            problems[at] = problem
    return problems


def score(
    prompt: Sequence[int], texts: Sequence[Sequence[int]], max_length: int, adapter: str | None
) -> Plan[list[float]]:
    """Return the log-probability of each text after the prompt, in nats, by the causal encoder.

    An empty text has 0. A text that exceeds the context of `max_length` tokens is not read and has minus infinity:
    encoding a generated text again can give more tokens than it was generated with.
    """
    log_likelihoods = {tuple(text): -math.inf if text else 0.0 for text in texts}
    longest = max_length - len(prompt) + 1  # the last token of a text is not read
    readable = tuple(text for text in log_likelihoods if 0 < len(text) <= longest)
    if readable:
        (output,) = yield [Score(prompt=tuple(prompt), texts=readable, adapter=adapter)]
        log_likelihoods |= zip(readable, cast(Scored, output).log_likelihoods, strict=True)
    return [log_likelihoods[tuple(text)] for text in texts]


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
