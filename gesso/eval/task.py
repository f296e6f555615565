"""The task protocol: where items come from, how they are asked, and how an answer is scored."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gesso.errors import InputError

if TYPE_CHECKING:
    from gesso.api import Gesso
    from gesso.chat.prompt import Prompt
    from gesso.engine.events import Result

SPLITS = ("train", "validation", "test")
# The one score that is not between 0 and 1: in nats per token. A task that has it generates no text.
LOG_PROBABILITY = "log_probability"


@dataclass(frozen=True, kw_only=True)
class Item:
    name: str  # identifies the item in reports, such as a file and line
    prompt: str | tuple[Mapping[str, Any], ...]  # text to continue, or a conversation to answer
    expected: str
    meta: Mapping[str, Any] = field(default_factory=dict)  # what the scorer needs beyond `expected`
    constraint: Mapping[str, Any] = field(default_factory=dict)  # options of `Gesso.chat` for constrained evaluation
    opening: str = ""  # beginning of the answer to a conversation, which is given
    choices: tuple[str, ...] = ()  # continuations to decide between; constrained evaluation writes one of them
    ask: "Callable[[Gesso], Prompt] | None" = field(default=None, repr=False)  # in place of `prompt`


class Task(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores. Plots show the first."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of `Gesso.generate` for this task, such as `max_new_tokens`."""

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        """Return the first `count` items. Their order depends on split and seed only."""

    def score(self, item: Item, output: str) -> dict[str, float]:
        """Return every score of an answer, from 0 to 1. A malformed answer scores low and never raises.

        Not called if the score is LOG_PROBABILITY, which the encoder gives to the texts in `item.meta["answers"]`.
        """


@runtime_checkable
class Checkable(Protocol):
    """A task that recognizes wrong answers without the expected answer, so that they can be retried."""

    def stands(self, item: Item, output: str) -> bool:
        """Return whether an answer meets all requirements of the item. Must not use `item.expected`."""

    def again(self, item: Item, seed: int, attempt: int) -> tuple[Item, Callable[[str], str]]:
        """Return the item in another form for retry number `attempt` (1, 2, …).

        The function maps an answer to that form back to an answer to the original item.
        """


@runtime_checkable
class Holes(Protocol):
    """A task whose items are holes in a text, so that they can also be filled with a pinned suffix."""

    def hole(self, item: Item) -> tuple[str, str]:
        """Return the text before and after the hole."""


@runtime_checkable
class Reads(Protocol):
    """A task that scores more than the text of an answer, such as what a model sees in an image."""

    def read(self, g: "Gesso", item: Item, result: "Result") -> str:
        """Return what `score` gets as the output."""


def split_of(key: str) -> str:
    """Return the split of a key by its hash: 80 % train, 10 % validation, 10 % test, the same on every machine.

    Give related data (a puzzle and its mirror image, two versions of a file) the same key.
    """
    tenth = hashlib.sha256(key.encode()).digest()[0] * 10 // 256
    return "train" if tenth < 8 else SPLITS[tenth - 7]


def check_draw(split: str, count: int) -> None:
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}; expected {', '.join(SPLITS)}")
    if count < 1:
        raise InputError(f"the number of items must be at least 1, got {count}")
