"""The quality of answers: the scores of a task, or without expected answers the model's own judgement."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from gesso.api import Gesso
from gesso.eval.evaluate import Evaluation, Outcome, evaluate
from gesso.eval.own_data import LIKELIHOOD, OwnData
from gesso.eval.python_infill import edit_similarity
from gesso.eval.task import LOG_PROBABILITY, Item, Task
from gesso.settings import PRESETS, Diffusion, PresetName

REFERENCE: PresetName = "quality"  # the preset of the many-step run that answers without a reference are compared with
AGREEMENT = "agreement"

Progress = Callable[[int, int], None]  # (done, total)


class Judge(Protocol):
    """The way in which the quality of answers is measured."""

    @property
    def scores(self) -> tuple[str, ...]: ...

    def evaluate(
        self, g: Gesso, items: Sequence[Item], settings: Diffusion, options: Mapping[str, Any], progress: Progress
    ) -> Evaluation:
        """Answer the items with some settings. `options` are others of `gesso.eval.evaluate`."""


@dataclass(frozen=True)
class ByTask:
    """The scores of a task, which knows the expected answers."""

    task: Task

    @property
    def scores(self) -> tuple[str, ...]:
        return self.task.scores

    def evaluate(
        self, g: Gesso, items: Sequence[Item], settings: Diffusion, options: Mapping[str, Any], progress: Progress
    ) -> Evaluation:
        return evaluate(g, self.task, items, preset=settings, progress=progress, **options)


@dataclass(frozen=True)
class ByModel:
    """The model's own judgement of answers without a reference.

    The log-probability per token by the causal encoder, in nats, is also high for texts that repeat themselves. So
    `agreement` counts as well: 1 − edit distance / length to the answer of a run with many steps, in tokens.
    """

    rows: OwnData
    many_steps: Diffusion = PRESETS[REFERENCE]
    scores: tuple[str, ...] = (LOG_PROBABILITY, AGREEMENT)
    references: dict[str, list[str]] = field(default_factory=dict)  # many-step answers, by the items' fingerprint

    def evaluate(
        self, g: Gesso, items: Sequence[Item], settings: Diffusion, options: Mapping[str, Any], progress: Progress
    ) -> Evaluation:
        written = evaluate(g, self.rows, items, preset=settings, progress=progress, **options)
        if written.fingerprint not in self.references:
            many = evaluate(g, self.rows, items, preset=self.many_steps, progress=progress, **options)
            self.references[written.fingerprint] = [outcome.output for outcome in many.outcomes]
        likelihoods = _log_probabilities(g, self.rows, items, written.outcomes)
        outcomes = [
            replace(outcome, scores={LOG_PROBABILITY: likelihood, AGREEMENT: _agreement(g, outcome.output, reference)})
            for outcome, likelihood, reference in zip(
                written.outcomes, likelihoods, self.references[written.fingerprint], strict=True
            )
        ]
        return replace(written, outcomes=tuple(outcomes))


def _log_probabilities(g: Gesso, rows: OwnData, items: Sequence[Item], outcomes: Sequence[Outcome]) -> list[float]:
    """Return the log-probability per token of each answer; that of a guess for an empty one."""
    answered = [
        replace(item, meta={"answers": (outcome.output,)})
        for item, outcome in zip(items, outcomes, strict=True)
        if outcome.output
    ]
    read = evaluate(g, replace(rows, kind=LIKELIHOOD), answered).outcomes if answered else ()
    scores = iter([outcome.scores[LOG_PROBABILITY] for outcome in read])
    return [next(scores) if outcome.output else -math.log(g.config.vocab_size) for outcome in outcomes]


def _agreement(g: Gesso, text: str, reference: str) -> float:
    return edit_similarity(g.tokenizer.encode(text, bos=False), g.tokenizer.encode(reference, bos=False))
