"""The `pattern` of a schema: a regular expression of ECMAScript, read into a tree and written out for JSON strings.

Readers disagree on some classes: `\\w` has é in Python, not in ECMAScript. A class is therefore kept as two sets, what
is in it for everyone and what is in it for anyone; texts are made from the first, complements from the second.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from gesso.constraints.charset import ANY, LAST, Ranges, chars, complement, minus, union
from gesso.constraints.regex import EMPTY, Piece, alt, repeat, seq
from gesso.constraints.syntax import MARKS, Choice, Repeat, Sequence, Tree
from gesso.errors import InputError

NEST = 50


@dataclass(frozen=True, slots=True)
class Chars:
    sure: Ranges
    maybe: Ranges

    def negated(self) -> "Chars":
        return Chars(complement(self.maybe), complement(self.sure))


@dataclass(frozen=True, slots=True)
class Anchor:
    mark: str


Node = Tree[Chars | Anchor]
Char = Callable[[Ranges], Piece | None]

_DIGIT = union(((0x30, 0x39),))
_WORD = union(_DIGIT, ((0x41, 0x5A), (0x61, 0x7A)), chars("_"))
_SPACE = chars("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B))))
_NO_WORD = union(minus(((0, 0x7F),), _WORD), ((0x2000, 0x206F),))
SHORTHANDS = {
    "d": Chars(_DIGIT, union(_DIGIT, ((0x660, LAST),))),  # U+0660 is the first decimal digit beyond ASCII
    "w": Chars(_WORD, complement(_NO_WORD)),
    "s": Chars(_SPACE, union(_SPACE, ((0x1C, 0x1F),), chars("\x85\ufeff"))),
}
SHORTHANDS |= {name.upper(): chars_.negated() for name, chars_ in SHORTHANDS.items()}
_DOT = Chars(minus(ANY, chars("\n\r\u2028\u2029")), minus(ANY, chars("\n")))
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_ANYTHING = Repeat(Chars(ANY, ANY), 0, None)


def pattern_content(pattern: str, low: int, high: int | None, char: Char) -> Piece | None:
    """What stands between the quotes of a string of `low` to `high` characters in which the pattern is found.

    `char` writes one character of a set.
    """
    tree = _Parser(pattern).parse()
    options = tree.items if isinstance(tree, Choice) else (tree,)
    return alt(_write(_fit(_anchored(option, pattern), low, high, pattern), char) for option in options)


def _anchored(node: Node, pattern: str) -> Sequence[Chars | Anchor]:
    """The whole string instead of a part of it: what `^` and `$` do not rule out may stand before and after."""
    items = list(node.items) if isinstance(node, Sequence) else [node]
    start, end = items[:1] == [Anchor("^")], items[-1:] == [Anchor("$")]
    items = items[start : len(items) - end]
    if any(_has_anchor(item) for item in items):
        raise InputError(f"the pattern {pattern!r} has ^ or $ inside: only at its start and end can they be followed")
    return Sequence((*([] if start else [_ANYTHING]), *items, *([] if end else [_ANYTHING])))


def _has_anchor(node: Node) -> bool:
    match node:
        case Sequence(items) | Choice(items):
            return any(map(_has_anchor, items))
        case Repeat(item):
            return _has_anchor(item)
    return isinstance(node, Anchor)


def _fit(node: Sequence[Chars | Anchor], low: int, high: int | None, pattern: str) -> Sequence[Chars | Anchor]:
    """The same within bounds of length, if one repetition of single characters can take up the difference."""
    least, most = _length(node)
    if least >= low and (high is None or (most is not None and most <= high)):
        return node
    loose = [i for i, item in enumerate(node.items) if _length(item)[0] != _length(item)[1]]
    place = node.items[loose[0]] if len(loose) == 1 else None
    if not isinstance(place, Repeat) or _length(place.item) != (1, 1):
        raise InputError(f"the pattern {pattern!r} cannot be held to minLength and maxLength: put the length into it")
    rest = least - place.low
    fewest = max(place.low, low - rest)
    limits = [n for n in (place.high, None if high is None else high - rest) if n is not None]
    changed = replace(place, low=fewest, high=min(limits) if limits else None)
    return Sequence((*node.items[: loose[0]], changed, *node.items[loose[0] + 1 :]))


def _length(node: Node) -> tuple[int, int | None]:
    """The least and the most characters; `None` for no end."""
    match node:
        case Chars():
            return 1, 1
        case Anchor():
            return 0, 0
        case Repeat(item, low, high):
            least, most = _length(item)
            return least * low, 0 if most == 0 else None if most is None or high is None else most * high
        case Choice(items) | Sequence(items):
            total: Callable[[list[int]], int] = sum if isinstance(node, Sequence) else max
            ranges = [_length(item) for item in items]
            leasts, mosts = [r[0] for r in ranges], [r[1] for r in ranges if r[1] is not None]
            least = sum(leasts) if isinstance(node, Sequence) else min(leasts)
            return least, total([0, *mosts]) if len(mosts) == len(ranges) else None


def _write(node: Node, char: Char) -> Piece | None:
    match node:
        case Chars(sure):
            return char(sure)
        case Choice(items):
            return alt(_write(item, char) for item in items)
        case Sequence(items):
            parts = [_write(item, char) for item in items]
            return seq(*(p for p in parts if p is not None)) if None not in parts else None
        case Repeat(item, low, high):
            if high is not None and low > high:
                return None
            part = _write(item, char)
            return repeat(part, low, high) if part is not None else EMPTY if low == 0 else None
        case Anchor():
            raise AssertionError("anchors are gone before anything is written")


@lru_cache(maxsize=1024)
def _one(char: str) -> Chars:
    return Chars(chars(char), chars(char))


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern, self.at, self.level = pattern, 0, 0

    def parse(self) -> Node:
        tree = self._choice()
        if self.at < len(self.pattern):
            raise self._error("a ) that closes nothing")
        return tree

    def _error(self, what: str) -> InputError:
        return InputError(f"the pattern {self.pattern[:80]!r} cannot be followed at character {self.at}: {what}")

    def _peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        self.at += len(text) * found
        return found

    def _next(self) -> str:
        if self.at >= len(self.pattern):
            raise self._error("it ends too early")
        self.at += 1
        return self.pattern[self.at - 1]

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while self.at < len(self.pattern) and not self._peek("|") and not self._peek(")"):
            items.append(self._repeated(self._atom()))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _repeated(self, item: Node) -> Node:
        counts = next(((mark, pair) for mark, pair in MARKS.items() if self._take(mark)), None)
        low, high = counts[1] if counts else (1, 1)
        if not counts:
            if not self._take("{"):
                return item
            low = self._number()
            high = (None if self._peek("}") else self._number()) if self._take(",") else low
            if not self._take("}") or (high is not None and low > high):
                raise self._error("a repetition is written {2}, {2,} or {2,5}")
        if isinstance(item, Anchor):
            raise self._error("an anchor cannot be repeated")
        self._take("?")  # as few as possible: the same texts
        if self.pattern[self.at : self.at + 1] in ("*", "+", "{"):
            raise self._error("a repetition of a repetition needs a group")
        return Repeat(item, low, high)

    def _number(self) -> int:
        start = self.at
        while self.pattern[self.at : self.at + 1].isdecimal() and self.at - start < 9:
            self.at += 1
        if start == self.at:
            raise self._error("a number was expected")
        return int(self.pattern[start : self.at])

    def _atom(self) -> Node:
        char = self._next()
        if char == "(":
            return self._group()
        if char in "^$":
            return Anchor(char)
        if char == ".":
            return _DOT
        if char == "[":
            return self._class()
        if char == "\\":
            return self._escape()
        if char in "*+?{}]":
            raise self._error(f"{char} stands for itself only as \\{char}")
        return _one(char)

    def _group(self) -> Node:
        self.level += 1
        if self.level > NEST:
            raise self._error(f"groups nest deeper than {NEST}")
        if self._take("?"):
            if self._take("<") and not self._peek("=") and not self._peek("!"):
                while self._next() != ">":
                    pass
            elif not self._take(":"):
                raise self._error("look-around and flags are not regular expressions in the sense needed here")
        inside = self._choice()
        if not self._take(")"):
            raise self._error("a ( is not closed")
        self.level -= 1
        return inside

    def _escape(self) -> Chars:
        char = self._next()
        if char in SHORTHANDS:
            return SHORTHANDS[char]
        if char in "xu":
            size = 2 if char == "x" else 4
            digits = self.pattern[self.at : self.at + size]
            if len(digits) < size or any(c not in "0123456789abcdefABCDEF" for c in digits):
                raise self._error(f"\\{char} is followed by {size} hexadecimal digits")
            self.at += size
            char = chr(int(digits, 16))
        elif char in _CONTROLS:
            char = _CONTROLS[char]
        elif char.isalnum():
            raise self._error(f"\\{char} (back-references, word boundaries and properties are not known here)")
        return _one(char)

    def _class(self) -> Chars:
        negated = self._take("^")
        sure: list[Ranges] = []
        maybe: list[Ranges] = []
        while not self._take("]"):
            item = self._class_item()
            if self._peek("-") and not self._peek("-]"):
                self._take("-")
                last = self._class_item()
                ends = (item.sure, last.sure)
                if any(len(end) != 1 or end[0][0] != end[0][1] for end in ends) or ends[0] > ends[1]:
                    raise self._error("a range in a class goes from one character to a later one")
                item = Chars(((ends[0][0][0], ends[1][0][0]),), ((ends[0][0][0], ends[1][0][0]),))
            sure.append(item.sure)
            maybe.append(item.maybe)
        found = Chars(union(*sure), union(*maybe))
        return found.negated() if negated else found

    def _class_item(self) -> Chars:
        if self._take("\\b"):
            return _one("\b")
        if self._take("\\-"):
            return _one("-")
        char = self._next()
        if char == "\\":
            return self._escape()
        if char == "[":
            raise self._error("[ stands for itself in a class only as \\[")
        return _one(char)
