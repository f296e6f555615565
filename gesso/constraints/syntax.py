"""What patterns and grammars are read into: sequences, choices and repetitions, of leaves that each has of its own."""

from dataclasses import dataclass
from typing import Generic, TypeVar, Union

Leaf = TypeVar("Leaf")
Tree = Union[Leaf, "Sequence[Leaf]", "Choice[Leaf]", "Repeat[Leaf]"]  # noqa: UP007 (a quoted name has no |)

MARKS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True, slots=True)
class Sequence(Generic[Leaf]):
    items: tuple[Tree[Leaf], ...]


@dataclass(frozen=True, slots=True)
class Choice(Generic[Leaf]):
    items: tuple[Tree[Leaf], ...]


@dataclass(frozen=True, slots=True)
class Repeat(Generic[Leaf]):
    item: Tree[Leaf]
    low: int
    high: int | None  # None: without end
