"""Syntax trees of regular expressions and grammars, and the parser code that both share."""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar, Union

from gesso.errors import InputError

Leaf = TypeVar("Leaf")
Tree = Union[Leaf, "Sequence[Leaf]", "Alternatives[Leaf]", "Repetition[Leaf]"]  # noqa: UP007 (a quoted name has no |)

MAX_COUNT = 10**6  # of a repetition

_MARKS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True, slots=True)
class Sequence(Generic[Leaf]):
    items: tuple[Tree[Leaf], ...]


@dataclass(frozen=True, slots=True)
class Alternatives(Generic[Leaf]):
    items: tuple[Tree[Leaf], ...]


@dataclass(frozen=True, slots=True)
class Repetition(Generic[Leaf]):
    item: Tree[Leaf]
    low: int
    high: int | None  # None: no upper limit


class Parser(ABC, Generic[Leaf]):
    """Recursive descent over choices, sequences, groups and counts. A subclass reads the items between them."""

    max_nest: int  # of groups
    blank = re.compile("")  # skipped after each token
    integer = re.compile("[0-9]{1,18}")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0  # the position of the next character
        self.nest = 0  # groups that are open

    @abstractmethod
    def error(self, at: int, problem: str) -> InputError:
        """Return an error that names the position `at` in the text."""

    @abstractmethod
    def item(self) -> Tree[Leaf] | None:
        """Read one item without its count; None at the end of a sequence."""

    @abstractmethod
    def repeated(self, item: Tree[Leaf]) -> Tree[Leaf]:
        """Read the counts after an item."""

    def choice(self) -> Tree[Leaf]:
        options = [self.sequence()]
        while self.take("|"):
            options.append(self.sequence())
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def sequence(self) -> Tree[Leaf]:
        items: list[Tree[Leaf]] = []
        while (item := self.item()) is not None:
            items.append(self.repeated(item))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def group(self, start: int, end: str = ")") -> Tree[Leaf]:
        """Read the rest of a group that was opened at `start`."""
        self.nest += 1
        if self.nest > self.max_nest:
            raise self.error(start, f"groups nest deeper than {self.max_nest} levels")
        inside = self.choice()
        if not self.take(end):
            raise self.error(start, f"this {self.text[start]} is not closed")
        self.nest -= 1
        return inside

    def counts(self) -> tuple[int, int | None] | None:
        """Read `*`, `+`, `?` or `{2,5}`; None if there is no count."""
        start = self.at
        for mark, counts in _MARKS.items():
            if self.take(mark):
                return counts
        if not self.take("{"):
            return None
        low = self._integer()
        high: int | None = low
        if self.take(","):
            high = None if self.starts("}") else self._integer()
        if not self.take("}") or (high is not None and low > high):
            raise self.error(start, "a count must look like {2}, {2,} or {2,5}")
        self.check_counts(start, low, high)
        return low, high

    def check_counts(self, start: int, low: int, high: int | None) -> None:
        """Reject counts that are too high."""
        if max(low, high or 0) > MAX_COUNT:
            raise self.error(start, f"counts go up to {MAX_COUNT:,}; leave the upper one out")

    def _integer(self) -> int:
        digits = self.match(self.integer)
        if digits is None:
            raise self.error(self.at, "expected an integer")
        return int(digits)

    def hex_char(self, start: int, size: int) -> str:
        """Read the hexadecimal digits of an escape that began at `start`."""
        digits = self.text[self.at : self.at + size]
        if not re.fullmatch(f"[0-9a-fA-F]{{{size}}}", digits) or int(digits, 16) > 0x10FFFF:
            raise self.error(start, f"{self.text[start : start + 2]} needs {size} hexadecimal digits of a character")
        self.at += size
        return chr(int(digits, 16))

    def starts(self, sign: str) -> bool:
        return self.text.startswith(sign, self.at)

    def take(self, sign: str) -> bool:
        """Skip a sign and the blanks after it, if it comes next."""
        if not self.starts(sign):
            return False
        self.at += len(sign)
        self.match(self.blank)
        return True

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """Read the text that a pattern matches here, and skip the blanks after it."""
        token = pattern.match(self.text, self.at)
        if token is None:
            return None
        blank = self.blank.match(self.text, token.end())
        self.at = blank.end() if blank else token.end()
        return token.group()
