"""Evaluation: a task's items go through the engine side by side, and every figure comes with its 95 % interval."""

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gesso
from gesso.engine.events import Result
from gesso.engine.plan import total_usage
from gesso.errors import InputError
from gesso.eval.answers import Question, Tries, answers
from gesso.eval.task import Item, Task
from gesso.settings import choose

if TYPE_CHECKING:
    from gesso.api import Gesso

Z = 1.959964  # of the normal distribution, 95 % two-sided
REQUEST_OPTIONS = ("max_new_tokens", "preset", "stop")  # of a request; all others are settings of the diffusion

# --- figures --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval; None where too few values give none."""

    mean: float
    low: float | None
    high: float | None


def wilson(successes: float, count: int) -> tuple[float, float]:
    """Interval of a share of yes/no outcomes (Wilson 1927): it stays within 0..1 and is not empty at 0 % or 100 %."""
    share, z2 = successes / count, Z * Z / count
    middle = share + z2 / 2
    reach = Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count))
    return max(0.0, (middle - reach) / (1 + z2)), min(1.0, (middle + reach) / (1 + z2))


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent values with its normal interval."""
    if len(values) < 2:
        return Estimate(sum(values), None, None)
    count, mean = len(values), math.fsum(values) / len(values)
    reach = Z * math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    return Estimate(mean, mean - reach, mean + reach)


def estimate_score(values: Sequence[float]) -> Estimate:
    """The same for scores, which end at 0 and 1; those that are one or the other have Wilson's interval."""
    if values and all(value in (0, 1) for value in values):
        return Estimate(sum(values) / len(values), *wilson(sum(values), len(values)))
    found = estimate(values)
    if found.low is None or found.high is None:
        return found
    return Estimate(found.mean, max(found.low, 0.0), min(found.high, 1.0))


# --- results --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one item. One that could not run has an `error`, scores of 0 and no steps."""

    name: str
    seed: int
    expected: str
    scores: Mapping[str, float]
    seconds: float  # from asking to answer, others running beside it
    output: str = ""
    finish_reason: str | None = None
    denoising_steps: int = 0  # of all attempts and candidates
    tokens_per_step: float = 0.0
    error: str | None = None
    attempts: int = 1  # that it took
    first_scores: Mapping[str, float] = field(default_factory=dict)  # of the first, where more were allowed


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    task: str
    data: Mapping[str, Any]  # where the items came from, in the caller's words: split, count, seed, files
    fingerprint: str  # of the items: two evaluations that share it asked the same questions
    model: Mapping[str, Any]
    settings: Mapping[str, Any]
    seed: int
    seconds: float
    outcomes: tuple[Outcome, ...]

    @property
    def scores(self) -> dict[str, Estimate]:
        return {name: estimate_score([o.scores[name] for o in self.outcomes]) for name in self.outcomes[0].scores}

    @property
    def first_scores(self) -> dict[str, Estimate]:
        """What the first attempts alone would have scored; nothing where there was one only."""
        names = self.outcomes[0].first_scores
        return {name: estimate_score([o.first_scores[name] for o in self.outcomes]) for name in names}

    @property
    def denoising_steps(self) -> Estimate:
        return estimate([float(outcome.denoising_steps) for outcome in self._ran])

    @property
    def tokens_per_step(self) -> Estimate:
        """The mean over items of each item's tokens per step."""
        return estimate([outcome.tokens_per_step for outcome in self._ran])

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    @property
    def _ran(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.error is None]

    def summary(self) -> str:
        """The figures and their intervals, for people to read."""
        rows = [(name, score, 100, " %") for name, score in self.scores.items()]
        rows += [(f"{name}, 1st try", score, 100, " %") for name, score in self.first_scores.items()]
        rows += [("denoising steps", self.denoising_steps, 1, ""), ("tokens per step", self.tokens_per_step, 1, "")]
        lines = [f"{self.task}, {len(self.outcomes)} items, at most {self.settings['steps']} steps"]
        for name, found, scale, unit in rows:
            interval = ""
            if found.low is not None and found.high is not None:
                interval = f"  ({scale * found.low:.1f} to {scale * found.high:.1f})"
            lines.append(f"  {name:16}{scale * found.mean:6.1f}{unit or '  '}{interval}")
        lines += [f"  failed: {outcome.name}: {outcome.error}" for outcome in self.failures]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON; the figures first."""
        return {
            "task": self.task,
            "count": len(self.outcomes),
            "scores": {name: dataclasses.asdict(score) for name, score in self.scores.items()},
            "first_scores": {name: dataclasses.asdict(score) for name, score in self.first_scores.items()},
            "denoising_steps": dataclasses.asdict(self.denoising_steps),
            "tokens_per_step": dataclasses.asdict(self.tokens_per_step),
            "seconds": self.seconds,
            "failures": [{"name": outcome.name, "error": outcome.error} for outcome in self.failures],
            "seed": self.seed,
            "model": dict(self.model),
            "settings": dict(self.settings),
            "data": dict(self.data),
            "fingerprint": self.fingerprint,
            "gesso": gesso.__version__,
            "items": [dataclasses.asdict(outcome) for outcome in self.outcomes],
        }


# --- running --------------------------------------------------------------------------------------------------------


def evaluate(
    g: "Gesso",
    task: Task,
    items: Iterable[Item],
    *,
    seed: int = 0,
    batch: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    data: Mapping[str, Any] | None = None,
    constrained: bool = False,
    attempts: int = 1,
    candidates: int = 1,
    pinned: bool = False,
    **options: Any,
) -> Evaluation:
    """Generate an answer to every item and score it.

    `options` are those of `Gesso.generate` (`preset`, `steps`, …), on top of the task's own. `batch` items are under
    way at once (None: as many as the engine runs together), which changes the time and nothing else: an item's seed
    depends on `seed` and its place alone. `progress` is called with (done, total) after every item. `constrained`
    answers keep to what their items say they have to be. An answer that the task itself can tell to be wrong is
    attempted again, in another form, up to `attempts` times. Of several `candidates` the likeliest is taken.
    `pinned` holes are filled as a model without markers would fill them.
    """
    asked = list(items)
    if not asked:
        raise InputError("there are no items to evaluate")
    if batch is not None and batch < 1:
        raise InputError(f"batch must be at least 1, got {batch}")
    if constrained and not any(item.constraint for item in asked):
        raise InputError(f"the items of {task.name} say nothing of what an answer has to be")
    tries = Tries(attempts, candidates, pinned)
    tries.check(task, asked)
    options = {**task.options, **options}
    # Wrong settings are wrong for every item: better said now than counted as failures of each.
    diffusion = {name: value for name, value in options.items() if name not in REQUEST_OPTIONS}
    chosen = dataclasses.asdict(choose(g.defaults.diffusion, options.get("preset"), **diffusion))
    start = time.perf_counter()
    outcomes: dict[int, Outcome] = {}
    batch = batch or len(g.engine.scheduler.rows)
    questions = [
        Question(item, _item_seed(seed, index), {**options, **(item.constraint if constrained else {})})
        for index, item in enumerate(asked)
    ]
    for index, tried, seconds in answers(g, task, questions, batch, tries):
        outcomes[index] = _outcome(g, task, questions[index], tried, seconds, attempts)
        if progress:
            progress(len(outcomes), len(asked))
    return Evaluation(
        task=task.name,
        data=dict(data or {}),
        fingerprint=hashlib.sha256(repr([_asked(i) for i in asked]).encode()).hexdigest()[:16],
        model={"name": str(g.directory), "device": str(g.model.device), "dtype": str(g.model.dtype).split(".")[-1]},
        settings={
            **{name: _plain(value) for name, value in {**options, **chosen}.items()},
            "constrained": constrained,
            **dataclasses.asdict(tries),
        },
        seed=seed,
        seconds=time.perf_counter() - start,
        outcomes=tuple(outcomes[index] for index in range(len(asked))),
    )


def sweep(g: "Gesso", task: Task, items: Iterable[Item], *, steps: Sequence[int], **options: Any) -> list[Evaluation]:
    """The same items under several limits on the denoising steps of a canvas: accuracy against steps.

    A limit is not a run cut short: the temperature falls from `t_max` to `t_min` over as many steps as there may be.
    """
    asked = list(items)
    return [evaluate(g, task, asked, steps=limit, **options) for limit in steps]


def _outcome(
    g: "Gesso", task: Task, question: Question, tried: list[Result] | Exception, seconds: float, attempts: int
) -> Outcome:
    item = question.item
    shared: dict[str, Any] = {"name": item.name, "seed": question.seed, "expected": item.expected, "seconds": seconds}
    if isinstance(tried, Exception):
        none = dict.fromkeys(task.scores, 0.0)
        first = none if attempts > 1 else {}
        return Outcome(**shared, scores=none, first_scores=first, error=str(tried) or repr(tried))
    # A call is written in special tokens, which `text` leaves out.
    outputs = [g.decode(one.tokens, special=True) if item.meta.get("tools") else one.text for one in tried]
    usage = total_usage([one.usage for one in tried], tried[-1].usage.completion_tokens)
    return Outcome(
        **shared,
        output=outputs[-1],
        scores=task.score(item, outputs[-1]),
        finish_reason=tried[-1].finish_reason,
        denoising_steps=usage.denoising_steps,
        tokens_per_step=usage.tokens_per_step,
        attempts=len(tried),
        first_scores=task.score(item, outputs[0]) if attempts > 1 else {},
    )


def _asked(item: Item) -> tuple[Any, ...]:
    question = (item.prompt, item.expected)
    return (*question, item.meta["tools"]) if item.meta.get("tools") else question


def _item_seed(seed: int, index: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {index}".encode()).digest()[:4])


def _plain(value: Any) -> Any:
    """Fit for JSON: a sampler of the caller's own goes by its name."""
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
