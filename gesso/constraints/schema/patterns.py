"""Compile the `pattern` keyword, an ECMAScript regular expression, to an expression for JSON strings.

Validators disagree on some classes: `\\w` contains é in Python, but not in ECMAScript. So a class is kept as two sets:
characters that every validator accepts, and characters that any validator accepts. Texts are made from the first set,
complements from the second.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from gesso.constraints.charset import ANY, LAST, Ranges, chars, complement, minus, union
from gesso.constraints.regex import Regex, alt, repeat, seq
from gesso.constraints.syntax import Choice, Parser, Repeat, Sequence, Tree
from gesso.errors import InputError


@dataclass(frozen=True, slots=True)
class Chars:
    every: Ranges  # in the class for every validator
    any: Ranges  # in the class for at least one validator

    def negated(self) -> "Chars":
        return Chars(complement(self.any), complement(self.every))


@dataclass(frozen=True, slots=True)
class Anchor:
    mark: str


Leaf = Chars | Anchor
Node = Tree[Leaf]
WriteChar = Callable[[Ranges], Regex | None]  # writes one character of a set

_DIGIT = union(((0x30, 0x39),))
_WORD = union(_DIGIT, ((0x41, 0x5A), (0x61, 0x7A)), chars("_"))
_SPACE = chars("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B))))
_NO_WORD = union(minus(((0, 0x7F),), _WORD), ((0x2000, 0x206F),))
_SHORTHANDS = {
    "d": Chars(_DIGIT, union(_DIGIT, ((0x660, LAST),))),  # U+0660 is the first decimal digit beyond ASCII
    "w": Chars(_WORD, complement(_NO_WORD)),
    "s": Chars(_SPACE, union(_SPACE, ((0x1C, 0x1F),), chars("\x85\ufeff"))),
}
_SHORTHANDS |= {name.upper(): found.negated() for name, found in _SHORTHANDS.items()}
_DOT = Chars(minus(ANY, chars("\n\r\u2028\u2029")), minus(ANY, chars("\n")))
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_ANYTHING = Repeat(Chars(ANY, ANY), 0, None)


def pattern_content(pattern: str, low: int, high: int | None, write_char: WriteChar) -> Regex | None:
    """Return the content of strings of `low` to `high` characters that contain a match of the pattern."""
    tree = _Pattern(pattern).parse()
    options = tree.items if isinstance(tree, Choice) else (tree,)
    return alt(_compile(_fit(_anchored(option, pattern), low, high, pattern), write_char) for option in options)


def _anchored(node: Node, pattern: str) -> Sequence[Leaf]:
    """Extend a match to the whole string: allow any text where `^` or `$` does not forbid it."""
    items = list(node.items) if isinstance(node, Sequence) else [node]
    start, end = items[:1] == [Anchor("^")], items[-1:] == [Anchor("$")]
    items = items[start : len(items) - end]
    if any(map(_has_anchor, items)):
        raise InputError(f"the pattern {pattern!r} has ^ or $ inside; they are supported only at its start and end")
    return Sequence((*([] if start else [_ANYTHING]), *items, *([] if end else [_ANYTHING])))


def _has_anchor(node: Node) -> bool:
    match node:
        case Sequence(items) | Choice(items):
            return any(map(_has_anchor, items))
        case Repeat(item):
            return _has_anchor(item)
    return isinstance(node, Anchor)


def _fit(node: Sequence[Leaf], low: int, high: int | None, pattern: str) -> Sequence[Leaf]:
    """Restrict the length, if a single repetition of one character can absorb the difference."""
    least, most = _length(node)
    if least >= low and (high is None or (most is not None and most <= high)):
        return node
    variable = [i for i, item in enumerate(node.items) if _length(item)[0] != _length(item)[1]]
    item = node.items[variable[0]] if len(variable) == 1 else None
    if not isinstance(item, Repeat) or _length(item.item) != (1, 1):
        raise InputError(
            f"the pattern {pattern!r} cannot be combined with minLength and maxLength; write the length into it"
        )
    rest = least - item.low
    highs = [n for n in (item.high, None if high is None else high - rest) if n is not None]
    fitted = replace(item, low=max(item.low, low - rest), high=min(highs, default=None))
    return Sequence((*node.items[: variable[0]], fitted, *node.items[variable[0] + 1 :]))


def _length(node: Node) -> tuple[int, int | None]:
    """Return the lowest and the highest number of characters; None for no upper limit."""
    match node:
        case Chars():
            return 1, 1
        case Anchor():
            return 0, 0
        case Repeat(item, low, high):
            least, most = _length(item)
            return least * low, 0 if most == 0 else None if most is None or high is None else most * high
        case Choice(items) | Sequence(items):
            lengths = [_length(item) for item in items]
            leasts, mosts = [least for least, _ in lengths], [most for _, most in lengths if most is not None]
            unlimited = len(mosts) < len(lengths)
            if isinstance(node, Sequence):
                return sum(leasts), None if unlimited else sum(mosts)
            return min(leasts), None if unlimited else max(mosts)


def _compile(node: Node, write_char: WriteChar) -> Regex | None:
    match node:
        case Chars(every):
            return write_char(every)
        case Choice(items):
            return alt(_compile(item, write_char) for item in items)
        case Sequence(items):
            return seq(*(_compile(item, write_char) for item in items))
        case Repeat(item, low, high):
            return repeat(_compile(item, write_char), low, high)
        case Anchor():
            raise AssertionError("_anchored removes all anchors")


@lru_cache(maxsize=1024)
def _one(char: str) -> Chars:
    return Chars(chars(char), chars(char))


class _Pattern(Parser[Leaf]):
    max_nest = 50
    integer = re.compile(r"\d{1,9}")

    def parse(self) -> Node:
        tree = self.choice()
        if self.at < len(self.text):
            raise self.error(self.at, "this ) closes no group")
        return tree

    def error(self, at: int, problem: str) -> InputError:
        return InputError(f"the pattern {self.text[:80]!r} is not supported at character {at}: {problem}")

    def _next(self) -> str:
        if self.at >= len(self.text):
            raise self.error(self.at, "unexpected end")
        self.at += 1
        return self.text[self.at - 1]

    def item(self) -> Node | None:
        if self.at >= len(self.text) or self.starts("|") or self.starts(")"):
            return None
        start, char = self.at, self._next()
        if char == "(":
            return self._group(start)
        if char in "^$":
            return Anchor(char)
        if char == ".":
            return _DOT
        if char == "[":
            return self._class()
        if char == "\\":
            return self._escape()
        if char in "*+?{}]":
            raise self.error(start, f"unexpected {char}; write the literal character as \\{char}")
        return _one(char)

    def repeated(self, item: Node) -> Node:
        start, counts = self.at, self.counts()
        if counts is None:
            return item
        if isinstance(item, Anchor):
            raise self.error(start, "an anchor cannot be repeated")
        self.take("?")  # a lazy repetition matches the same texts
        if self.text[self.at : self.at + 1] in ("*", "+", "{"):
            raise self.error(self.at, "a repetition of a repetition needs a group")
        return Repeat(item, *counts)

    def _group(self, start: int) -> Node:
        if self.take("?"):
            if self.take("<") and not self.starts("=") and not self.starts("!"):
                while self._next() != ">":
                    pass
            elif not self.take(":"):
                raise self.error(start, "look-around and flags are not supported")
        return self.group(start)

    def _escape(self) -> Chars:
        start, char = self.at - 1, self._next()
        if char in _SHORTHANDS:
            return _SHORTHANDS[char]
        if char in "xu":
            return _one(self.hex_char(start, 2 if char == "x" else 4))
        if char in _CONTROLS:
            return _one(_CONTROLS[char])
        if char.isalnum():
            raise self.error(
                start, f"unknown escape \\{char}; back-references, word boundaries and properties are not supported"
            )
        return _one(char)

    def _class(self) -> Chars:
        negated = self.take("^")
        items: list[Chars] = []
        while not self.take("]"):
            start, item = self.at, self._class_item()
            if self.starts("-") and not self.starts("-]"):
                self.take("-")
                ends = (item.every, self._class_item().every)
                if any(len(end) != 1 or end[0][0] != end[0][1] for end in ends) or ends[0] > ends[1]:
                    raise self.error(start, "a range in a class must go from one character to a later one")
                between = ((ends[0][0][0], ends[1][0][0]),)
                item = Chars(between, between)
            items.append(item)
        found = Chars(union(*(item.every for item in items)), union(*(item.any for item in items)))
        return found.negated() if negated else found

    def _class_item(self) -> Chars:
        if self.take("\\b"):
            return _one("\b")
        if self.take("\\-"):
            return _one("-")
        start, char = self.at, self._next()
        if char == "\\":
            return self._escape()
        if char == "[":
            raise self.error(start, "unexpected [ in a class; write the literal character as \\[")
        return _one(char)
