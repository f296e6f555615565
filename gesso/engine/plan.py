"""Answers that take more than one request.

A `Plan` is a generator: it yields requests that may run side by side, is sent their results in the same order, and
returns the answer. `PlanRun` carries it out on an engine that somebody else steps: `Gesso`, an evaluation, or a server
with other clients.
"""

import math
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from gesso.engine.events import Done, Event, Failed, Result, Scored, Usage
from gesso.engine.request import Request, Score
from gesso.errors import InputError
from gesso.infill.holes import fill_sides

if TYPE_CHECKING:
    from gesso.api import Gesso
    from gesso.engine.engine import Engine

SEEDS = 2**64
SCORED = 128  # tokens after a hole that count in the score of a candidate for it

T = TypeVar("T")
Answer = Result | tuple[float, ...]  # to a Request; to a Score
Plan = Generator[Sequence[Request | Score], Sequence[Answer], T]


class PlanRun(Generic[T]):
    """A plan that is being carried out. The caller steps the engine and passes on the events of `ids`.

    At most `at_once` requests of a round are in the engine at a time: the next one enters when one has ended.
    """

    def __init__(self, plan: Plan[T], engine: "Engine", at_once: int | None = None) -> None:
        self.plan, self.engine, self.at_once = plan, engine, at_once
        self.ids: list[int] = []  # of all requests so far, in the order in which they were submitted
        self.ended = False
        self.result: T  # once it has ended without an error
        self._unsent: deque[Request | Score] = deque()
        self._round: list[int] = []
        self._answers: dict[int, Answer] = {}

    def start(self) -> bool:
        """Submit the first round; return whether the plan has ended, as it has if it needs no request."""
        self.submit(self.advance(None))
        return self.ended

    def take(self, event: Event) -> bool:
        """Take an event of one of the requests; return whether the plan has ended.

        The event that completes a round starts the next one. An error of a request or of the plan ends the plan and is
        raised. Events of a plan that has ended are ignored.
        """
        if (answers := self.collect(event)) is not None:
            self.submit(self.advance(answers))
        return self.ended

    # The steps of `take`, for a caller that has a thread in which the plan can work out its next round:

    def collect(self, event: Event) -> list[Answer] | None:
        """Note an event; return the answers of the round if it completes it."""
        if self.ended or event.request_id not in self._round:
            return None
        match event:
            case Failed(error=error):
                self.cancel()
                raise error
            case Done(request_id, result):
                self._answers[request_id] = result
            case Scored(request_id, log_likelihoods):
                self._answers[request_id] = log_likelihoods
        self._fill()
        if len(self._answers) < len(self._round):
            return None
        return [self._answers[request_id] for request_id in self._round]

    def advance(self, answers: list[Answer] | None) -> Sequence[Request | Score]:
        """Give the plan the answers of its last round; return the requests of the next one, none if it has ended."""
        self._round, self._answers = [], {}
        try:
            return next(self.plan) if answers is None else self.plan.send(answers)
        except StopIteration as end:
            self.result, self.ended = end.value, True
            return ()
        except BaseException:
            self.ended = True
            raise

    def submit(self, requests: Sequence[Request | Score]) -> None:
        """Begin a round: submit its first requests."""
        self._unsent.extend(requests)
        self._fill()

    def _fill(self) -> None:
        try:
            while self._unsent and (self.at_once is None or len(self._round) - len(self._answers) < self.at_once):
                self._round.append(self.engine.submit(self._unsent.popleft()))
                self.ids.append(self._round[-1])
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """End the plan, and the requests of it that still run."""
        self.ended = True
        self.plan.close()
        for request_id in self._round:
            self.engine.cancel(request_id)


# --- parts of plans -------------------------------------------------------------------------------------------------


def generate(requests: Sequence[Request]) -> Plan[list[Result]]:
    """Run several requests side by side; return their results in order."""
    return [cast(Result, answer) for answer in (yield requests)] if requests else []


def score(g: "Gesso", prompt: Sequence[int], texts: Sequence[Sequence[int]]) -> Plan[list[float]]:
    """Return the log-probability of each text after the prompt, in nats, by the causal encoder.

    The tokens of a text may be others than those it was written with, and more. Then it can exceed the context, is not
    read, and gets minus infinity.
    """
    known = {tuple(text): -math.inf if text else 0.0 for text in texts}
    room = g.engine.max_length - len(prompt) + 1  # the last token of a text is not read
    able = tuple(text for text in known if 0 < len(text) <= room)
    if able:
        (answer,) = yield [Score(prompt=tuple(prompt), texts=able)]
        known |= zip(able, cast(tuple[float, ...], answer), strict=True)
    return [known[tuple(text)] for text in texts]


def candidates_of(request: Request, count: int) -> list[Request]:
    """Return `count` copies of a request with its own seed and the next ones: candidate i is what seed + i gives."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InputError(f"candidates must be a whole number of at least 1, got {count!r}")
    return [replace(request, seed=(request.seed + i) % SEEDS) for i in range(count)]


def likeliest(g: "Gesso", request: Request, count: int) -> Plan[Result]:
    """Return the candidate whose text the causal encoder finds likeliest; its usage is the work of all candidates."""
    results = yield from generate(candidates_of(request, count))
    if count == 1:
        return results[0]
    scores = yield from log_likelihoods(g, request.prompt, [result.text for result in results])
    best = scores.index(max(scores))
    usages = [result.usage for result in results]
    return replace(results[best], usage=together(usages, results[best].usage.completion_tokens))


def log_likelihoods(g: "Gesso", prompt: Sequence[int], texts: Sequence[str]) -> Plan[list[float]]:
    """Return the log-probability of each text as an answer to the prompt, by the causal encoder, in nats.

    For a hole: log p(text and what comes after | what comes before), without markers. Whether the rest follows from a
    text says more about the text than how predictable it was. The sum compares texts of different lengths fairly, see
    `filling._search`. For any other prompt: log p(text and its end | prompt).

    A text is encoded anew: the score is that of the text as it will be read, not of the tokens it was written with.
    """
    sides = fill_sides(g.tokenizer, prompt)
    before, end, after = prompt, [g.defaults.eos_token_ids[0]], ""
    if sides is not None:
        before, end, after = sides[0], [], g.decode(sides[1][:SCORED])
    encoded = {text: [*g.tokenizer.encode(text + after, bos=False), *end] for text in dict.fromkeys(texts)}
    scores = yield from score(g, before, list(encoded.values()))
    known = dict(zip(encoded, scores, strict=True))
    return [known[text] for text in texts]


def together(usages: Sequence[Usage], completion_tokens: int) -> Usage:
    """Return one usage for several requests: the prompt of the first, the work of all."""
    return Usage(
        usages[0].prompt_tokens,
        usages[0].cached_tokens,
        completion_tokens,
        sum(usage.denoising_steps for usage in usages),
        sum(usage.canvases for usage in usages),
        sum(usage.redrawn for usage in usages),
    )
