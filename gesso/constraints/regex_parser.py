"""Parse a regular expression in the common part of ECMAScript, Python's `re` and Rust's `regex` crate.

Where the dialects read an expression in different ways, it is rejected with the reason.
"""

import re
from dataclasses import dataclass

from gesso.constraints.limits import Limits
from gesso.constraints.regex_classes import (
    ANY_CHAR,
    DOT,
    POSIX,
    SHORTHANDS,
    Chars,
    exactly,
    joined,
    one,
    unicode_property,
)  # fmt: skip
from gesso.constraints.syntax import Parser, Repetition, Sequence, Tree
from gesso.errors import InputError

MAX_RANGES = 1_000_000  # of characters, in all classes of an expression


@dataclass(frozen=True, slots=True)
class Anchor:
    end: bool  # of the text; otherwise its start


@dataclass(frozen=True, slots=True)
class Boundary:
    """The edge of a word, or any other place."""

    negated: bool


@dataclass(frozen=True, slots=True)
class Look:
    """A condition on the text that follows, or on the text before."""

    tree: "Node"
    behind: bool
    negated: bool


Assertion = Anchor | Boundary | Look
Leaf = Chars | Assertion
Node = Tree[Leaf]

_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_ANCHORS = {"A": False, "z": True, "Z": True}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_COUNT = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}", re.ASCII)
_LOOKS = {"=": (False, False), "!": (False, True), "<=": (True, False), "<!": (True, True)}
_NAME = re.compile(r"(?:P?<)([^\W\d]\w*)>")
_FLAGS = re.compile(r"([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
_POSIX = re.compile(r"\[:(\^?)([a-z]+):\]")
_PROPERTY = re.compile(r"\{(\^?)([\w= ]+)\}|([A-Z])")
_BLANK = re.compile(r"(?:[ \t\n\r\f\v]|#[^\n]*)*")


class RegexParser(Parser[Leaf]):
    """Reads one expression. `has_assertions` tells whether it contains anything that looks around."""

    max_nest = 100

    def __init__(self, text: str, name: str, limits: Limits, flags: str = "") -> None:
        """`name` is the kind of expression, for errors."""
        super().__init__(text)
        if len(text) > limits.regex_chars:
            raise InputError(
                f"the {name} is longer than {limits.regex_chars:,} characters (limits.regex_chars); "
                "shorten it or raise the limit"
            )
        self.name = name
        self.flags = frozenset(flags)
        self.has_assertions = False
        self.ranges = 0  # in all classes read so far

    def parse(self) -> Node:
        tree = self.choice()
        if self.at < len(self.text):
            raise self.error(self.at, "this ) closes no group")
        return tree

    def error(self, at: int, problem: str) -> InputError:
        return InputError(f"the {self.name} {self.text[:80]!r} is not supported at character {at}: {problem}")

    def item(self) -> Node | None:
        self._blank()
        if self.at >= len(self.text) or self.starts("|") or self.starts(")"):
            return None
        start, char = self.at, self._next()
        if char == "(":
            return self._group(start)
        if char in "^$":
            return self._assertion(Anchor(char == "$"))
        if char == ".":
            return ANY_CHAR if "s" in self.flags else DOT
        if char == "[":
            return self._class(start)
        if char == "\\":
            return self._escape(start)
        if char in "*+?" or (char == "{" and _COUNT.match(self.text, start)):
            raise self.error(start, f"{char} repeats nothing; write the literal character as \\{char}")
        return self._chars(one(char))

    def repeated(self, item: Node) -> Node:
        self._blank()
        start = self.at
        if self.starts("{") and not _COUNT.match(self.text, start):
            if self.starts("{,"):
                raise self.error(start, "{, is a count only for Python; write {0, for a count, or \\{ for the sign")
            return item  # a literal {
        counts = self.counts()
        if counts is None:
            return item
        if isinstance(item, Anchor | Boundary):
            raise self.error(start, "an anchor cannot be repeated")
        self.take("?")  # a lazy repetition matches the same texts
        if self.text[self.at : self.at + 1] in ("*", "+", "?") or _COUNT.match(self.text, self.at):
            raise self.error(self.at, "a repetition of a repetition needs a group; possessive ones are not supported")
        if isinstance(item, Look):  # one condition as often as you like
            return item if counts[0] else Sequence(())
        low, high = counts
        return Repetition(item=item, low=low, high=high)

    def _next(self) -> str:
        if self.at >= len(self.text):
            raise self.error(self.at, "unexpected end")
        self.at += 1
        return self.text[self.at - 1]

    def _blank(self) -> None:
        if "x" in self.flags:
            self.match(_BLANK)

    def _assertion(self, assertion: Assertion) -> Assertion:
        self.has_assertions = True
        return assertion

    def _chars(self, chars: Chars) -> Chars:
        return chars.folded() if "i" in self.flags else chars

    # --- groups -------------------------------------------------------------------------------------------------------

    def _group(self, start: int) -> Node:
        flags = self.flags
        try:
            if not self.take("?") or self.match(_NAME) is not None:
                return self.group(start)
            for sign, (behind, negated) in _LOOKS.items():
                if self.take(sign):
                    return self._assertion(Look(self.group(start), behind, negated))
            if self.take("#"):
                while self._next() != ")":
                    pass
                return Sequence(())
            if self._set_flags(start):
                return self.group(start)
            flags = self.flags  # they apply until the end of the enclosing group
            return Sequence(())
        finally:
            self.flags = flags

    def _set_flags(self, start: int) -> bool:
        """Read flags. Return whether they apply to a group that follows."""
        for sign, problem in {
            ">": "atomic groups are not supported",
            "P=": "back-references are not supported; a text with one is not regular",
            "(": "conditions are not supported",
        }.items():
            if self.starts(sign):
                raise self.error(start, problem)
        flags = _FLAGS.match(self.text, self.at)
        if flags is None:
            raise self.error(start, f"unknown group {self.text[start : start + 4]}")
        self.at = flags.end()
        on, off = flags[1], flags[2] or ""
        for flag in on + off:
            if flag == "m":
                raise self.error(start, "the flag m is not supported; write the line breaks into the expression")
            if flag not in "isxua":  # u and a choose sets of characters on which dialects disagree
                raise self.error(start, f"the flag {flag} is not supported; i, s and x are")
        self.flags = (self.flags | set(on)) - set(off)
        return flags[3] == ":"

    # --- characters ---------------------------------------------------------------------------------------------------

    def _escape(self, start: int) -> Leaf:
        char = self.text[self.at : self.at + 1]
        if char in ("b", "B"):
            self.at += 1
            if self.starts("{"):
                raise self.error(start, "\\b{ is not supported")
            return self._assertion(Boundary(char == "B"))
        if char in _ANCHORS:
            self.at += 1
            return self._assertion(Anchor(_ANCHORS[char]))
        return self._char_escape(start)

    def _char_escape(self, start: int) -> Chars:
        """Read an escape that stands for characters."""
        char = self._next()
        if char in SHORTHANDS:
            return SHORTHANDS[char]
        if char in "pP":
            return self._property(start, char == "P")
        if char in _HEX_DIGITS:
            return self._chars(one(self._hex(start, char)))
        if char == "c":
            letter = self._next()
            if not (letter.isascii() and letter.isalpha()):
                raise self.error(start, "\\c needs a letter")
            return one(chr(ord(letter) % 32))
        if char == "0" and self.text[self.at : self.at + 1].isdigit():
            raise self.error(start, "octal escapes are not supported; write \\x and two digits")
        if char in _CONTROLS:
            return one(_CONTROLS[char])
        if char.isdigit() or char == "k":
            raise self.error(start, "back-references are not supported; a text with one is not regular")
        if char.isalnum():
            raise self.error(start, f"unknown escape \\{char}")
        return one(char)

    def _hex(self, start: int, kind: str) -> str:
        if kind != "U" and self.take("{"):
            end = self.text.find("}", self.at)
            size = end - self.at
            char = self.hex_char(start, size if 1 <= size <= 8 else 1)
            if not self.take("}"):
                raise self.error(start, f"\\{kind}{{ needs hexadecimal digits and }}")
            return char
        char = self.hex_char(start, _HEX_DIGITS[kind])
        if kind == "u" and "\ud800" <= char <= "\udbff" and self.starts("\\u"):
            second = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})").match(self.text, self.at)
            if second:
                self.at = second.end()
                return chr(0x10000 + ((ord(char) - 0xD800) << 10) + int(second[1], 16) - 0xDC00)
        return char

    def _property(self, start: int, negated: bool) -> Chars:
        prop = _PROPERTY.match(self.text, self.at)
        if prop is None:
            raise self.error(start, "\\p needs a property of characters, such as \\p{Lu}")
        self.at = prop.end()
        caret, long_name, letter = prop.groups()
        name = long_name or letter
        chars = unicode_property(name)
        if chars is None:
            raise self.error(start, f"the property {name!r} is unknown; use a general category such as \\p{{Lu}}")
        chars = self._chars(chars)
        return chars.negated() if negated != bool(caret) else chars

    def _class(self, start: int) -> Chars:
        negated = self.take("^")
        if self.starts("]"):
            raise self.error(start, "dialects disagree on ] at the start of a class; write \\] for the sign")
        items: list[Chars] = []
        while not self.take("]"):
            if self.at >= len(self.text):
                raise self.error(start, "this [ is not closed")
            items.append(self._class_range())
        if any(SHORTHANDS[name] in items and SHORTHANDS[name.upper()] in items for name in "dws"):
            items = [ANY_CHAR]  # such as [\s\S]; the two sets of each dialect are complements
        self.ranges += sum(len(item.any) for item in items)
        if self.ranges > MAX_RANGES:
            raise self.error(start, "the classes are too large together; use fewer Unicode properties")
        chars = joined(*items)
        return chars.negated() if negated else chars

    def _class_range(self) -> Chars:
        start, low = self.at, self._class_item()
        if not self.starts("-") or self.starts("-]"):
            return self._chars(low)
        self.at += 1
        high = self._class_item()
        if not (_is_one(low) and _is_one(high)):  # after a shorthand, - is a sign
            return joined(self._chars(low), one("-"), self._chars(high))
        if low.every > high.every:
            raise self.error(start, "a range in a class must go from one character to a later one")
        return self._chars(exactly(((low.every[0][0], high.every[0][0]),)))

    def _class_item(self) -> Chars:
        """Read a character, without its other cases, or a shorthand."""
        start = self.at
        if posix := _POSIX.match(self.text, start):
            if posix[2] not in POSIX:
                raise self.error(start, f"unknown class {posix[0]}")
            self.at = posix.end()
            chars = exactly(POSIX[posix[2]])
            return chars.negated() if posix[1] else chars
        if self.starts("&&"):
            raise self.error(start, "intersections of classes are not supported; write && as &\\&")
        if self.take("\\b"):
            return one("\b")
        char = self._next()
        if char == "\\":
            flags, self.flags = self.flags, self.flags - {"i"}
            chars = self._char_escape(start)
            self.flags = flags
            return chars
        if "x" in self.flags and char in " \t\n\r\f\v#":
            raise self.error(start, "dialects disagree on blanks and # in a class after (?x); escape them")
        return one(char)


def _is_one(chars: Chars) -> bool:
    return chars.every == chars.any and len(chars.every) == 1 and chars.every[0][0] == chars.every[0][1]
