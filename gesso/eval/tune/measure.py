"""Answer items with several settings side by side, and measure the quality and the passes of each answer.

All settings answer an item before the next item begins, so that the KV cache still holds the item's prompt.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gesso.api import Gesso
from gesso.engine.events import Result
from gesso.engine.plan import Plan, generate, score
from gesso.errors import InputError
from gesso.eval.answers import Question, Tries, answer_plan, request, side_by_side
from gesso.eval.evaluate import item_seed, outcome
from gesso.eval.python_infill import edit_similarity
from gesso.eval.task import Item, Task
from gesso.eval.tune.search import DEFAULT, Measured
from gesso.settings import PRESETS, Diffusion, PresetName

REFERENCE: PresetName = "quality"  # the preset of the many-step run that answers without a reference are compared with
SLOW = 2  # times the passes of the default, at which a candidate is abandoned: it may need a hundred times the work
LIKELIHOOD, AGREEMENT = "likelihood", "agreement"


class Judge(Protocol):
    """The way in which the quality of an answer is measured."""

    @property
    def bounded(self) -> bool:
        """Whether all scores are from 0 to 1."""

    @property
    def scores(self) -> tuple[str, ...]: ...

    def prepare(self, g: Gesso, questions: Sequence[Question]) -> None:
        """Do once per item what the judgement of every answer to it needs."""

    def plan(self, g: Gesso, question: Question) -> Plan[Measured]: ...


@dataclass(frozen=True)
class ByTask:
    """The scores of a task, which knows the expected answers."""

    task: Task
    bounded: bool = True

    @property
    def scores(self) -> tuple[str, ...]:
        return self.task.scores

    def prepare(self, g: Gesso, questions: Sequence[Question]) -> None:
        pass

    def plan(self, g: Gesso, question: Question) -> Plan[Measured]:
        tried = yield from answer_plan(g, self.task, question, Tries())
        found = outcome(g, self.task, question, tried, seconds=0, attempts=1)
        return Measured(found.scores, found.denoising_steps)


@dataclass(frozen=True)
class ByModel:
    """The model's own judgement of answers without a reference.

    `likelihood` is the mean log-probability per token of the answer by the causal encoder, in nats. Texts that repeat
    themselves are likely too, so it is not enough. `agreement` is the share of tokens that agree with the answer of a
    run with many steps, as 1 − edit distance / length.
    """

    bounded: bool = False
    scores: tuple[str, ...] = (LIKELIHOOD, AGREEMENT)
    expected: dict[tuple[str, int], list[int]] = field(default_factory=dict)  # tokens of the many-step answers

    def prepare(self, g: Gesso, questions: Sequence[Question]) -> None:
        missing = [one for one in questions if _key(one) not in self.expected]
        many = [Question(one.item, one.seed, {**one.options, "preset": PRESETS[REFERENCE]}) for one in missing]
        plans = (generate([request(g, one.item, one)]) for one in many)
        for index, found, _ in side_by_side(g, plans, len(g.engine.scheduler.rows)):
            if isinstance(found, Exception):
                raise InputError(f"{many[index].item.name}: {found}")
            self.expected[_key(many[index])] = g.tokenizer.encode(found[0].text, bos=False)

    def plan(self, g: Gesso, question: Question) -> Plan[Measured]:
        asked = request(g, question.item, question)
        (result,) = yield from generate([asked])
        text = g.tokenizer.encode(result.text, bos=False)
        read = [*text, g.eos_token_id] if _ended(result) else text
        (total,) = yield from score(asked.prompt, [read], g.max_length, asked.adapter)
        guess = -math.log(g.config.vocab_size)  # of a text that the context has no room for
        likelihood = total / max(len(read), 1) if math.isfinite(total) else guess
        agreement = edit_similarity(text, self.expected[_key(question)])
        return Measured({LIKELIHOOD: likelihood, AGREEMENT: agreement}, result.usage.denoising_steps)


def _key(question: Question) -> tuple[str, int]:
    """Return what an answer depends on, other than the settings. Names of rows need not be different."""
    return repr(question.item.prompt), question.seed


def _ended(result: Result) -> bool:
    """Return whether the model ended the text itself."""
    return result.finish_reason == "stop" and result.stop is None


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Items and settings to measure, as the search calls it."""

    g: Gesso
    judge: Judge
    items: Sequence[Item]
    settings: Sequence[Diffusion]  # the candidates
    options: Mapping[str, Any]  # of requests, such as max_new_tokens
    seed: int
    base: dict[int, float] = field(default_factory=dict)  # passes of the default, by item

    def __call__(self, candidates: Sequence[int], items: range) -> Iterator[tuple[int, int, Measured | Exception]]:
        """Yield (candidate, item, answer or error). An item that the default settings cannot answer is an error."""
        rows = len(self.g.engine.scheduler.rows)
        # The many-step answers of a few items at a time, so that a limit on the time is kept.
        size = len(items) if self.judge.bounded else rows
        for start in range(0, len(items), max(size, 1)):
            part = items[start : start + size]
            questions = {at: Question(self.items[at], item_seed(self.seed, at), self.options) for at in part}
            self.judge.prepare(self.g, list(questions.values()))
            yield from self._answers(candidates, questions, rows)

    def _answers(
        self, candidates: Sequence[int], questions: Mapping[int, Question], rows: int
    ) -> Iterator[tuple[int, int, Measured | Exception]]:
        begun: list[tuple[int, int]] = []
        passes: dict[int, dict[int, float]] = {one: {} for one in candidates} | {DEFAULT: self.base}
        slow: set[int] = set()

        def plans() -> Iterator[Plan[Measured]]:
            for at, question in questions.items():
                for one in candidates:
                    if one not in slow:
                        begun.append((one, at))
                        yield self._plan(question, self.settings[one])

        for index, found, _ in side_by_side(self.g, plans(), rows):
            one, at = begun[index]
            if isinstance(found, Exception) and one == DEFAULT:
                raise InputError(f"{self.items[at].name}: {found}") from None
            yield one, at, found
            passes[one][at] = 0 if isinstance(found, Exception) else found.passes
            for each in (one,) if one != DEFAULT else candidates:
                if each not in slow and _is_slow(passes[each], self.base, questions):
                    slow.add(each)
                    yield each, at, InputError(f"more than {SLOW} times the passes of the default")

    def _plan(self, question: Question, settings: Diffusion) -> Plan[Measured]:
        asked = Question(question.item, question.seed, {**question.options, "preset": settings})
        return self.judge.plan(self.g, asked)


def _is_slow(passes: Mapping[int, float], default: Mapping[int, float], items: Iterable[int]) -> bool:
    """Return whether a candidate needs many times the passes of the default on the first items, two or more.

    Only the first items that both have answered count, so that the order in which answers end has no influence.
    """
    total = base = 0.0
    for count, at in enumerate(items, 1):
        if at not in passes or at not in default:
            return False
        total, base = total + passes[at], base + default[at]
        if count >= 2 and total > SLOW * base:
            return True
    return False
