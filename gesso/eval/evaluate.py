"""Run the items of a task through the engine in batches, and summarize their scores."""

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gesso
from gesso import renamed
from gesso.engine.events import Result
from gesso.engine.plan import total_usage
from gesso.errors import InputError
from gesso.eval.answers import Answer, Question, Tries, answers
from gesso.eval.estimate import Estimate, estimate, estimate_score
from gesso.eval.task import LOG_PROBABILITY, Item, Reads, Task
from gesso.presets import resolved
from gesso.settings import choose

if TYPE_CHECKING:
    from gesso.api import Gesso

REQUEST_OPTIONS = ("max_new_tokens", "preset", "stop")  # all other options are diffusion settings


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one item. An item that could not run has an `error`, scores of 0 and no steps."""

    name: str
    seed: int
    expected: str
    scores: Mapping[str, float]
    seconds: float  # from submission to answer, in a batch with others
    output: str = ""
    finish_reason: str | None = None
    denoising_steps: int = 0  # of all attempts and candidates
    tokens_per_step: float = 0.0
    error: str | None = None
    attempts: int = 1  # used
    first_scores: Mapping[str, float] = field(default_factory=dict)  # of the first attempt, if retries were allowed
    confidence: float | None = None  # probability of the choice, if the item was a decision


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    task: str
    data: Mapping[str, Any]  # origin of the items as given by the caller: split, count, seed, files
    fingerprint: str  # of the items: equal for evaluations of the same questions
    model: Mapping[str, Any]
    settings: Mapping[str, Any]
    seed: int
    seconds: float
    outcomes: tuple[Outcome, ...]

    @property
    def scores(self) -> dict[str, Estimate]:
        return {name: _estimated(name, [o.scores[name] for o in self.outcomes]) for name in self.outcomes[0].scores}

    @property
    def first_scores(self) -> dict[str, Estimate]:
        """Return the scores of the first attempts, empty if there were no retries."""
        names = self.outcomes[0].first_scores
        return {name: estimate_score([o.first_scores[name] for o in self.outcomes]) for name in names}

    @property
    def denoising_steps(self) -> Estimate:
        return estimate([float(outcome.denoising_steps) for outcome in self._ran])

    @property
    def tokens_per_step(self) -> Estimate:
        """Return the mean over items of each item's tokens per step."""
        return estimate([outcome.tokens_per_step for outcome in self._ran])

    @property
    def calibration_error(self) -> float | None:
        """Return the expected calibration error of decisions: confidence against accuracy, in ten bins of confidence.

        Guo et al., On Calibration of Modern Neural Networks, 2017.
        """
        bins: dict[int, list[float]] = {}
        for outcome in self._ran:
            confidence = outcome.confidence
            if confidence is not None:
                right = next(iter(outcome.scores.values()))
                bins.setdefault(min(9, int(10 * confidence)), []).append(confidence - right)
        count = sum(map(len, bins.values()))
        return sum(abs(sum(errors)) for errors in bins.values()) / count if count else None

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    @property
    def _ran(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.error is None]

    def summary(self) -> str:
        """Return the figures and their intervals as text."""
        lines = [f"{self.task}, {_counted(len(self.outcomes), 'item')}"]
        if LOG_PROBABILITY in self.scores:
            rows = [("log-probability", self.scores[LOG_PROBABILITY], 1, "")]
        else:
            lines[0] += self._written()
            rows = [(name, score, 100, " %") for name, score in self.scores.items()]
            rows += [(f"{name}, 1st try", score, 100, " %") for name, score in self.first_scores.items()]
            rows += [("denoising steps", self.denoising_steps, 1, ""), ("tokens per step", self.tokens_per_step, 1, "")]
        for name, figure, scale, unit in rows:
            interval = ""
            if figure.low is not None and figure.high is not None:
                interval = f"  ({scale * figure.low:.1f} to {scale * figure.high:.1f})"
            lines.append(f"  {name:16}{scale * figure.mean:6.1f}{unit or '  '}{interval}")
        if (error := self.calibration_error) is not None:
            lines.append(f"  {'calibration':16}{100 * error:6.1f} % expected error")
        lines += [f"  failed: {outcome.name}: {outcome.error}" for outcome in self.failures]
        return "\n".join(lines)

    def _written(self) -> str:
        """Return how the answers were written, to follow the number of items; empty for decisions."""
        write = self.settings["write"]
        if any(outcome.confidence is not None for outcome in self.outcomes):
            return ""
        if write == "tokens":
            return ", token by token"
        if write == "verified":
            return f", token by token with verified drafts of {self.settings['canvas_length']} tokens"
        return f", at most {_counted(self.settings['steps'], 'step')} per canvas"

    def to_dict(self) -> dict[str, Any]:
        """Return the complete evaluation for JSON, figures first."""
        return {
            "task": self.task,
            "count": len(self.outcomes),
            "scores": {name: dataclasses.asdict(score) for name, score in self.scores.items()},
            "first_scores": {name: dataclasses.asdict(score) for name, score in self.first_scores.items()},
            "denoising_steps": dataclasses.asdict(self.denoising_steps),
            "tokens_per_step": dataclasses.asdict(self.tokens_per_step),
            "calibration_error": self.calibration_error,
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


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _estimated(name: str, values: Sequence[float]) -> Estimate:
    return estimate(values) if name == LOG_PROBABILITY else estimate_score(values)


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

    `options` are options of `Gesso.generate` (`preset`, `steps`, …) and override those of the task. `batch` items run
    at once (None: the engine's batch size). The answers do not depend on it, because an item's seed depends only on
    `seed` and the item's position. `progress` is called with (done, total) after every item.

    With `constrained`, the constraints of the items apply. An answer that the task recognizes as wrong is retried in
    another form, up to `attempts` times in all. The likeliest of `candidates` is taken. With `pinned`, holes are filled
    with the suffix pinned in the canvas instead of in the prompt.
    """
    items = list(items)
    if not items:
        raise InputError("there are no items to evaluate")
    if batch is not None and batch < 1:
        raise InputError(f"batch must be at least 1, got {batch}")
    if constrained and not any(item.constraint for item in items):
        raise InputError(f"constrained evaluation needs items with constraints; those of {task.name} have none")
    tries = Tries(attempts=attempts, candidates=candidates, pinned=pinned)
    tries.check(task, items)
    options = {**task.options, **renamed.translated(options)}
    # Reject invalid settings now; otherwise every item would fail.
    diffusion = {name: value for name, value in options.items() if name not in REQUEST_OPTIONS}
    chosen = dataclasses.asdict(choose(g.defaults.diffusion, resolved(options.get("preset")), **diffusion))
    start = time.perf_counter()
    outcomes: dict[int, Outcome] = {}
    batch = batch or len(g.engine.scheduler.rows)
    questions = [
        Question(
            item=item,
            seed=item_seed(seed, index),
            options={**options, **item.constraint} if constrained else options,
        )
        for index, item in enumerate(items)
    ]
    for index, answer, seconds in answers(g, task, questions, batch, tries):
        outcomes[index] = outcome(g, task, questions[index], answer, seconds, attempts)
        if progress:
            progress(len(outcomes), len(items))
    return Evaluation(
        task=task.name,
        data=dict(data or {}),
        fingerprint=fingerprint(items),
        model={"name": str(g.directory), "device": str(g.model.device), "dtype": str(g.model.dtype).split(".")[-1]},
        settings={
            **{name: _plain(value) for name, value in {**options, **chosen}.items()},
            "constrained": constrained,
            **dataclasses.asdict(tries),
        },
        seed=seed,
        seconds=time.perf_counter() - start,
        outcomes=tuple(outcomes[index] for index in range(len(items))),
    )


def outcome(
    g: "Gesso", task: Task, question: Question, answer: Answer | Exception, seconds: float, attempts: int
) -> Outcome:
    """Return the scored answer to a question: a likelihood, the results of all attempts, or an error."""
    if isinstance(answer, float):
        return likelihood_outcome(question, seconds, answer)
    if isinstance(answer, Exception):
        return failed_outcome(question, seconds, answer, task, attempts)
    outputs = [output(g, task, question.item, result) for result in answer]
    return answered_outcome(question, seconds, answer, outputs, task, attempts)


def likelihood_outcome(question: Question, seconds: float, log_probability: float) -> Outcome:
    return Outcome(
        name=question.item.name,
        seed=question.seed,
        expected=question.item.expected,
        seconds=seconds,
        scores={LOG_PROBABILITY: log_probability},
    )


def failed_outcome(question: Question, seconds: float, error: Exception, task: Task, attempts: int) -> Outcome:
    if LOG_PROBABILITY in task.scores:
        raise InputError(f"{question.item.name}: {error}")  # a likelihood has no value that means "failed"
    zeros = dict.fromkeys(task.scores, 0.0)
    return Outcome(
        name=question.item.name,
        seed=question.seed,
        expected=question.item.expected,
        seconds=seconds,
        scores=zeros,
        first_scores=zeros if attempts > 1 else {},
        error=str(error) or repr(error),
    )


def answered_outcome(
    question: Question, seconds: float, results: Sequence[Result], outputs: Sequence[str], task: Task, attempts: int
) -> Outcome:
    """Return the outcome of one or more attempts, of which the last counts."""
    last = results[-1]
    usage = total_usage([result.usage for result in results], last.usage.completion_tokens)
    return Outcome(
        name=question.item.name,
        seed=question.seed,
        expected=question.item.expected,
        seconds=seconds,
        output=outputs[-1],
        scores=task.score(question.item, outputs[-1]),
        first_scores=task.score(question.item, outputs[0]) if attempts > 1 else {},
        finish_reason=last.finish_reason,
        denoising_steps=usage.denoising_steps,
        tokens_per_step=usage.tokens_per_step,
        attempts=len(results),
        confidence=getattr(last, "confidence", None),
    )


def output(g: "Gesso", task: Task, item: Item, result: Result) -> str:
    """Return the text to score: for tools with the special tokens of a call, for a conversation without thoughts."""
    if isinstance(task, Reads):
        return task.read(g, item, result)
    if item.meta.get("tools"):
        return g.decode(result.tokens, special=True)
    return result.text if isinstance(item.prompt, str) else g.read_answer(result).text


def fingerprint(items: Sequence[Item]) -> str:
    """Return a hash of the questions: equal for evaluations of the same items."""
    return hashlib.sha256(repr([_identity(item) for item in items]).encode()).hexdigest()[:16]


def _identity(item: Item) -> tuple[Any, ...]:
    """Return everything that makes an item the same question."""
    question = (item.prompt, item.expected)
    return (*question, item.meta["tools"]) if item.meta.get("tools") else question


def item_seed(seed: int, index: int) -> int:
    """Return the seed of the answer to an item, by its position."""
    return int.from_bytes(hashlib.sha256(f"{seed} {index}".encode()).digest()[:4])


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent; custom samplers become their repr."""
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
