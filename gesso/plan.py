"""Answers that take more than one request.

A `Plan` yields requests that may run side by side, is sent their results, and returns what they come to in the end. Who
carries it out (`Gesso`, an evaluation, or a server that has others to serve meanwhile) runs the engine.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from gesso.engine.events import Result, Usage
from gesso.engine.likelihood import Likelihood
from gesso.engine.request import Request
from gesso.errors import InputError
from gesso.guide.infill import fill_sides

if TYPE_CHECKING:
    from gesso.api import Gesso

SEEDS = 2**64
SCORED = 128  # tokens behind a hole that have a say in what fills it

T = TypeVar("T")
Plan = Generator[list[Request], list[Result], T]


def candidates_of(request: Request, count: int) -> list[Request]:
    """The same request with its own seed and the next ones: candidate i is what seed + i gives alone."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InputError(f"candidates must be a whole number of at least 1, got {count!r}")
    return [replace(request, seed=(request.seed + i) % SEEDS) for i in range(count)]


def likeliest(g: "Gesso", request: Request, count: int) -> Plan[Result]:
    """The candidate whose text the causal encoder finds likeliest; its usage is the work of all."""
    results = yield candidates_of(request, count)
    if count == 1:
        return results[0]
    scores = log_likelihoods(g, request.prompt, [result.text for result in results])
    best = scores.index(max(scores))
    usages = [result.usage for result in results]
    return replace(results[best], usage=together(usages, results[best].usage.completion_tokens))


def log_likelihoods(g: "Gesso", prompt: Sequence[int], texts: Sequence[str]) -> list[float]:
    """How likely each text is as what the prompt asks for, by the causal encoder, in nats.

    For a hole: log p(text and what comes after | what comes before), with no markers around. It says more of a text
    that what comes after follows from it than that it was to be expected; and it compares lengths fairly, as
    `filling._search` explains. For all else: log p(text and its end | prompt).

    Over texts as they will be read, and not over the tokens that happened to write them.
    """
    sides = fill_sides(g.tokenizer, prompt)
    if sides is None:
        likelihood, end = Likelihood(g.model, prompt), [g.defaults.eos_token_ids[0]]
        after = ""
    else:
        likelihood, end = Likelihood(g.model, sides[0]), []
        after = g.decode(sides[1][:SCORED])
    known = {t: likelihood.of([*g.tokenizer.encode(t + after, bos=False), *end]) for t in dict.fromkeys(texts)}
    return [known[text] for text in texts]


def together(usages: Sequence[Usage], completion_tokens: int) -> Usage:
    """One for several requests: the first one's prompt, the work of all."""
    return Usage(
        usages[0].prompt_tokens,
        usages[0].cached_tokens,
        completion_tokens,
        sum(usage.denoising_steps for usage in usages),
        sum(usage.canvases for usage in usages),
        sum(usage.redrawn for usage in usages),
    )
