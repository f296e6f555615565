"""Plans: answers that need several requests, round by round.

A plan is a generator. It yields a round of requests that may run side by side, receives their results in the same
order, and returns the answer. `gesso.engine.driver` runs plans on an engine.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, cast

from gesso.constraints.answer_check import AnswerCheck
from gesso.engine.events import Likely, Result, Scored, Usage
from gesso.engine.request import ATTEMPTS, SEEDS, Request, Score
from gesso.errors import ConstraintError, InputError

RETRY_SEED = 0x9E3779B97F4A7C15  # added per attempt; far from the seeds of candidates and choices, which follow closely


@dataclass(frozen=True)
class AnswerToCheck:
    """A finished answer, and what to check it by."""

    check: AnswerCheck
    result: Result


T = TypeVar("T")
R = TypeVar("R", bound=Result)
Round = Sequence[Request | Score | AnswerToCheck]  # either requests or answers
# Of a request, of a `Score` or a request that compares texts, and of a check: the problem, or None.
Output = Result | Scored | str | None
Plan = Generator[Round, Sequence[Output], T]


class Attempts(Protocol[R]):
    """Answers that can be written several times."""

    def write(self, numbers: Sequence[int], attempt: int) -> Plan[Sequence[R]]:
        """Write the answers with these numbers. Each attempt has seeds of its own; 0 is the first."""
        ...

    def to_check(self, number: int, result: R) -> AnswerToCheck | None:
        """Return what of a result is to be checked; None if nothing is."""
        ...


def until_valid(answers: Attempts[R], count: int, attempts: int) -> Plan[list[R]]:
    """Write answers, and write those that are not valid again. One that is not valid is never returned."""
    results = dict.fromkeys(range(count), cast(R, None))
    usages: dict[int, list[Usage]] = {number: [] for number in results}
    problems: Mapping[int, str] = {}
    wrong = list(results)
    for attempt in range(attempts):
        written = yield from answers.write(wrong, attempt)
        for number, result in zip(wrong, written, strict=True):
            results[number] = result
            usages[number].append(result.usage)
        problems = yield from _problems(answers, {number: results[number] for number in wrong})
        wrong = list(problems)
        if not wrong:
            break
    if problems:
        raise ConstraintError(next(iter(problems.values())), attempts)
    return [_with_all_usage(results[number], usages[number]) for number in results]


def _problems(answers: Attempts[R], results: Mapping[int, R]) -> Plan[dict[int, str]]:
    """Return what is wrong with the results that are not valid, by number."""
    checks: dict[int, AnswerToCheck] = {}
    for number, result in results.items():
        check = answers.to_check(number, result)
        if check is not None:
            checks[number] = check
    if not checks:
        return {}
    problems = yield list(checks.values())
    return {number: str(problem) for number, problem in zip(checks, problems, strict=True) if problem is not None}


def _with_all_usage(result: R, usages: Sequence[Usage]) -> R:
    if len(usages) == 1:
        return result
    return replace(result, usage=total_usage(usages, result.usage.completion_tokens))


@dataclass(frozen=True)
class Texts:
    """The texts of requests, each by itself."""

    requests: Sequence[Request]

    def write(self, numbers: Sequence[int], attempt: int) -> Plan[Sequence[Result]]:
        requests = [self.requests[number] for number in numbers]
        outputs = yield [request.with_seed(retry_seed(request.seed, attempt)) for request in requests]
        return cast(Sequence[Result], outputs)

    def to_check(self, number: int, result: Result) -> AnswerToCheck | None:
        """A text that was cut off is not checked."""
        request = self.requests[number]
        is_whole = result.finish_reason == "stop" and result.stop is None
        return AnswerToCheck(request.validate, result) if is_whole and request.validate is not None else None


def generate(requests: Sequence[Request], attempts: int = ATTEMPTS) -> Plan[list[Result]]:
    """Run several requests side by side and return their results in order.

    A result that is not valid is never returned: its request runs again with other seeds, and then fails.
    """
    if not requests:
        return []
    return (yield from until_valid(Texts(requests), len(requests), attempts))


def retry_seed(seed: int, attempt: int) -> int:
    """Return the seed of another attempt at an answer; attempt 0 is the first."""
    return (seed + attempt * RETRY_SEED) % SEEDS


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
    return [request.with_seed((request.seed + i) % SEEDS) for i in range(count)]


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
