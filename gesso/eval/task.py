"""What a task is: where its items come from, how they are asked, and how an answer is scored.

Training and evaluation read the same task, so the split between them is made here, once.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from gesso.errors import InputError

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Item:
    """One question: `prompt` is text to continue or a conversation to answer, `expected` the answer hoped for."""

    name: str  # where it comes from, in a word that finds it again
    prompt: str | tuple[Mapping[str, Any], ...]
    expected: str
    meta: Mapping[str, Any] = field(default_factory=dict)  # what the scorer needs beyond `expected`
    # What the answer has to be, as options of `Gesso.chat`; kept to only where an evaluation is `constrained`.
    constraint: Mapping[str, Any] = field(default_factory=dict)


class Task(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of the scores; the first is the one a plot shows."""

    @property
    def options(self) -> Mapping[str, Any]:
        """How its answers are generated: `max_new_tokens`, `stop`, … as `Gesso.generate` takes them."""

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        """The first `count` items of an order that is a function of split and seed alone."""

    def score(self, item: Item, output: str) -> dict[str, float]:
        """Every score of an answer, 0 to 1. A wrong answer, of whatever form, is a low score and never an error."""

    def training_rows(self, count: int, seed: int) -> Iterator[dict[str, Any]]:
        """Rows from the train split, as `gesso train` reads them from JSONL: `prompt` and `completion`, or `messages`
        and the `tools` that go with them.
        """


@runtime_checkable
class Checkable(Protocol):
    """A task whose wrong answers can be told without knowing the right one, so that they can be attempted again."""

    def stands(self, item: Item, output: str) -> bool:
        """Whether an answer keeps to all that was asked. Must not look at what is expected."""

    def again(self, item: Item, seed: int, attempt: int) -> tuple[Item, Callable[[str], str]]:
        """The item in the form in which it is asked once more (`attempt` 1, 2, …), and how an answer to that reads as
        an answer to the item.
        """


@runtime_checkable
class Holes(Protocol):
    """A task whose items are holes in a text, so that they can be filled without markers, too."""

    def hole(self, item: Item) -> tuple[str, str]:
        """The text before the hole, and after it."""


def split_of(key: str) -> str:
    """The split a thing belongs to, by a hash of its name: 8 in 10 train, 1 validation, 1 test, on every machine.

    Things that must not be torn apart (a puzzle and its mirror image, two versions of a file) need the same key.
    """
    tenth = hashlib.sha256(key.encode()).digest()[0] * 10 // 256
    return "train" if tenth < 8 else SPLITS[tenth - 7]


def check_draw(split: str, count: int) -> None:
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}; known are {', '.join(SPLITS)}")
    if count < 1:
        raise InputError(f"the count of items must be at least 1, got {count}")
