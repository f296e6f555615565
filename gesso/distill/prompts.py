"""Prompts for recorded runs, and the verifiers of the answers: items of a task, or rows of training data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gesso.api import Gesso
from gesso.engine.events import Result
from gesso.engine.request import Request
from gesso.errors import InputError
from gesso.eval import task as find_task
from gesso.eval.answers import Question, request
from gesso.eval.evaluate import item_seed, output
from gesso.eval.own_data import SCORES
from gesso.eval.task import Item, Task
from gesso.train.data import Dataset, Example
from gesso.train.inputs import digest

# The score of each task that must be 1. Most lines of Python have no single right form, so one that parses is accepted.
VERIFIERS = {"structured": "fields", "sudoku": "exact", "python_infill": "parses"}
NONE = "none"  # in place of a score: accept every text


@dataclass(frozen=True)
class VerifiedRequest:
    """The request of a prompt, and the verifier of its answer."""

    request: Request
    accepts: Callable[[Result], bool]


class Prompts(Protocol):
    @property
    def note(self) -> Mapping[str, Any]:
        """Everything that determines the prompts and the verifier, for JSON."""

    def __len__(self) -> int: ...

    def ask(self, g: Gesso, index: int, options: Mapping[str, Any]) -> VerifiedRequest:
        """Return the request for one prompt, with these options of `Gesso.generate`, and the verifier of its text."""

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Yield the prompts with their reference answers as rows of training data, unless these are files already."""


class TaskPrompts:
    """Items of a task's train split, which shares nothing with the others."""

    def __init__(self, name: str, count: int, seed: int, accept: str | None) -> None:
        if name not in VERIFIERS and ":" not in name:
            raise InputError(f"--task must be one of {', '.join(VERIFIERS)}, or module:class, got {name!r}")
        self.task: Task = find_task(name)
        self.accept = accept or VERIFIERS.get(name, self.task.scores[0])
        if self.accept not in (*self.task.scores, NONE):
            raise InputError(f"--accept must be one of {', '.join(self.task.scores)} or {NONE}, got {accept!r}")
        self.seed = seed
        self.items = list(self.task.items("train", count, seed))

    @property
    def note(self) -> Mapping[str, Any]:
        return {"task": self.task.name, "count": len(self.items), "seed": self.seed, "accept": self.accept}

    def __len__(self) -> int:
        return len(self.items)

    def ask(self, g: Gesso, index: int, options: Mapping[str, Any]) -> VerifiedRequest:
        item = self.items[index]
        question = Question(item, item_seed(self.seed, index), {**self.task.options, **options})

        def accepts(result: Result) -> bool:
            return self.accept == NONE or self.task.score(item, output(g, self.task, item, result))[self.accept] == 1

        return VerifiedRequest(request=request(g, item, question), accepts=accepts)

    def rows(self) -> Iterator[Mapping[str, Any]]:
        return map(_row, self.items)


def _row(item: Item) -> Mapping[str, Any]:
    """Return an item with its expected answer as a row of training data."""
    if isinstance(item.prompt, str):
        return {"prompt": item.prompt, "completion": item.expected}
    answer: dict[str, Any] = {"role": "assistant", "content": item.expected}
    if "tools" not in item.meta:
        return {"messages": [*item.prompt, answer]}
    call = {"type": "function", "function": {"name": item.meta["call"], "arguments": item.meta["value"]}}
    answer |= {"content": "", "tool_calls": [call]}
    return {"messages": [*item.prompt, answer], "tools": list(item.meta["tools"])}


class RowPrompts:
    """Rows of training data: the prompt of the last response of each, which is the reference."""

    def __init__(
        self, files: Sequence[str], dataset: Dataset, count: int | None, seed: int, accept: str | None
    ) -> None:
        self.accept = accept or NONE
        if self.accept not in (*SCORES, NONE):
            raise InputError(f"--accept must be one of {', '.join(SCORES)} or {NONE} with --data, got {accept!r}")
        rows = [row for row in dataset.read() if isinstance(row, Example)]
        self.files = files
        self.seed = seed
        self.examples = rows[:count]
        if not rows:
            raise InputError(
                f"there is no usable row in {', '.join(files)}; gesso train --data FILE --check lists the reasons"
            )

    @property
    def note(self) -> Mapping[str, Any]:
        data = {name: digest(Path(name)) for name in self.files if Path(name).is_file()}
        return {"data": data, "count": len(self.examples), "seed": self.seed, "accept": self.accept}

    def __len__(self) -> int:
        return len(self.examples)

    def ask(self, g: Gesso, index: int, options: Mapping[str, Any]) -> VerifiedRequest:
        example = self.examples[index]
        start, end = example.spans[-1]
        reference = g.decode(example.tokens[start : end - 1])  # without its end token

        def accepts(result: Result) -> bool:
            return self.accept == NONE or SCORES[self.accept](result.text, (reference,))

        request = g.request(example.tokens[:start], seed=item_seed(self.seed, index), **options)
        return VerifiedRequest(request=request, accepts=accepts)

    def rows(self) -> Iterator[Mapping[str, Any]]:
        return iter(())
