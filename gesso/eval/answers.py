"""Answer the items of a task, several at once.

The plan for one item makes attempts one after another until the task accepts one. Each attempt is the likeliest of
several candidates. If a task scores the likelihood of given answers, the plan reads them and generates nothing.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch

from gesso.api import Gesso
from gesso.chat.prompt import Prompt
from gesso.constraints.spec import NAMES
from gesso.engine.decision import choice_tokens, probabilities
from gesso.engine.driver import PlanRun
from gesso.engine.events import Result, Scored
from gesso.engine.plan import Plan, T, compare
from gesso.engine.request import Request, Score
from gesso.errors import InputError
from gesso.eval.decide import Decide
from gesso.eval.task import LOG_PROBABILITY, Checkable, Holes, Item, Task
from gesso.infill.candidates import likeliest


@dataclass(frozen=True)
class Question:
    item: Item
    seed: int
    options: Mapping[str, Any]  # of `Gesso.generate`


@dataclass(frozen=True)
class Tries:
    """How often an item may be tried: sequential attempts, and parallel candidates of each attempt."""

    attempts: int = 1
    candidates: int = 1
    pinned: bool = False  # fill holes by the method `pinned`: the text after a hole is in the canvas, not in the prompt

    def check(self, task: Task, items: Sequence[Item]) -> None:
        for name, count in (("attempts", self.attempts), ("candidates", self.candidates)):
            if count < 1:
                raise InputError(f"{name} must be at least 1, got {count}")
        if self.attempts > 1 and not isinstance(task, Checkable):
            raise InputError(f"attempts need a task that can detect a wrong answer by itself; {task.name} cannot")
        if self.pinned and not isinstance(task, Holes):
            raise InputError(f"pinned is for tasks with holes in a text; {task.name} has none")
        if self.candidates > 1 and not all(isinstance(item.prompt, str) for item in items):
            raise InputError(f"candidates need prompts of plain text; the items of {task.name} are conversations")


Answer = list[Result] | float  # all attempts, of which the last counts; or a log-probability per token


def answers(
    g: Gesso, task: Task, questions: Sequence[Question], batch: int, tries: Tries
) -> Iterator[tuple[int, Answer | Exception, float]]:
    """Yield (index, answer or error, seconds) of each question when it ends. Running out of memory ends everything."""
    return side_by_side(g, (answer_plan(g, task, question, tries) for question in questions), batch)


def side_by_side(g: Gesso, plans: Iterable[Plan[T]], batch: int) -> Iterator[tuple[int, T | Exception, float]]:
    """Run plans, `batch` at once, and yield (index, result or error, seconds) of each when it ends.

    A plan is taken from `plans` when it begins.
    """
    if g.engine.busy:  # their steps would count in the seconds of the items
        raise InputError("the engine has open requests; finish or close their streams before an evaluation")
    waiting = enumerate(plans)
    running: dict[int, PlanRun[T]] = {}  # by index
    ended: list[tuple[int, T | Exception, float]] = []

    def end(index: int, start: float, run: PlanRun[T]) -> None:
        running.pop(index, None)
        if isinstance(run.error, torch.OutOfMemoryError):
            raise run.error
        ended.append((index, run.error or run.outcome(), time.perf_counter() - start))

    try:
        while True:
            while len(running) < batch and (first := next(waiting, None)) is not None:
                index, plan = first
                run = g.driver.submit(plan, on_end=partial(end, index, time.perf_counter()))
                if not run.ended:
                    running[index] = run
                elif not isinstance(run.error, InputError):  # a bug: every item would fail
                    run.outcome()
            yield from ended
            ended.clear()
            if not running:
                return
            g.driver.step()
    finally:
        for run in running.values():
            g.driver.cancel(run)


def answer_plan(g: Gesso, task: Task, question: Question, tries: Tries) -> Plan[Answer]:
    """Answer one question, by likelihood or by generation, as the task requires."""
    if LOG_PROBABILITY in task.scores:
        return (yield from _log_probability(g, question.item))
    return (yield from _attempts(g, task, question, tries))


def _log_probability(g: Gesso, item: Item) -> Plan[float]:
    """Return the mean log-probability per token of the likeliest answer of an item, by the causal encoder."""
    encode = g.tokenizer.encode
    prompt = encode(item.prompt) if isinstance(item.prompt, str) else g.prompt(item.prompt).tokens
    texts = tuple(tuple(encode(answer, bos=False)) for answer in item.meta["answers"])
    (scored,) = yield [Score(prompt=tuple(prompt), texts=texts, adapter=g.adapter)]
    sums = cast(Scored, scored).log_likelihoods
    return max(total / len(text) for total, text in zip(sums, texts, strict=True))


def _attempts(g: Gesso, task: Task, question: Question, tries: Tries) -> Plan[list[Result]]:
    """Return a plan for all attempts at a question."""
    item = question.item
    tried = [(yield from _attempt(g, task, item, question, tries))]
    while isinstance(task, Checkable) and len(tried) < tries.attempts and not task.stands(item, tried[-1].text):
        form, read = task.again(item, question.seed, len(tried))
        result = yield from _attempt(g, task, form, question, tries)
        tried.append(replace(result, text=read(result.text)))
    return tried


@dataclass(frozen=True)
class Decided(Result):
    """The choice of a decision, as a text of which nothing was generated."""

    confidence: float = 0.0  # probability of the choice


def _attempt(g: Gesso, task: Task, item: Item, question: Question, tries: Tries) -> Plan[Result]:
    if isinstance(task, Decide) and "choice" not in question.options:
        return (yield from _decision(g, item, question.seed))
    if not tries.pinned:
        return (yield from likeliest(g.info, request(g, item, question), tries.candidates))
    assert isinstance(task, Holes)
    before, after = task.hole(item)
    options = {**question.options, "seed": question.seed, "candidates": tries.candidates}
    return (yield from g.infill_plan(before, after, method="pinned", **options))


def _decision(g: Gesso, item: Item, seed: int) -> Plan[Result]:
    prompt = _prompt(g, item)
    texts = choice_tokens(g.tokenizer, item.choices)
    scored = yield from compare(g.decision_request(prompt, texts))
    probability_of = probabilities(scored.log_likelihoods)  # of each choice
    confidence = max(probability_of)
    index = probability_of.index(confidence)
    return Decided(
        text=item.choices[index],
        tokens=texts[index],
        finish_reason="stop",
        usage=scored.usage,
        seed=seed,
        confidence=confidence,
    )


def _prompt(g: Gesso, item: Item) -> Prompt:
    """Return a conversation and the beginning of its answer."""
    assert not isinstance(item.prompt, str)
    prompt = g.prompt(item.prompt, tools=item.meta.get("tools"))
    return prompt + g.tokenizer.encode(item.opening, bos=False)


def request(g: Gesso, item: Item, question: Question) -> Request:
    """Return the engine request for an item with the seed and the options of a question."""
    options = {**question.options, "seed": question.seed}
    if item.ask is not None:
        return g.request(item.ask(g), **options)
    if isinstance(item.prompt, str):
        return g.request(item.prompt, **options)
    if item.opening:
        return g.request(_prompt(g, item), **options)
    # A schema that belongs into the prompt is part of the item.
    chat = g.chat_request(item.prompt, tools=item.meta.get("tools"), schema_in_prompt=False, **options)
    if question.options.keys() & {*NAMES, "tool_choice"}:
        return chat
    return replace(chat, guide=None, validate=None)  # without constraints, the syntax of calls is free too
