"""Parse a grammar into one syntax tree per rule, in the EBNF of llama.cpp. `grammar` describes the notation."""

import re
from dataclasses import dataclass

from gesso.constraints.charset import ANY, char_class, complement, union
from gesso.constraints.syntax import Parser, Repetition, Tree
from gesso.constraints.term import NOTHING, Term
from gesso.constraints.terms import literal
from gesso.errors import InputError

MAX_NEST = 100  # groups inside each other

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a rule at a position in the grammar."""

    name: str
    at: int


Node = Tree[Term | Use]


class Grammar(Parser[Term | Use]):
    """The rules of a grammar: the tree of each rule, and the position of its definition."""

    max_nest = MAX_NEST
    blank = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
    root = "root"
    example = "root ::= ..."
    all_used = True  # a rule that is never used is an error

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.trees: dict[str, Node] = {}
        self.defined: dict[str, int] = {}
        self.match(self.blank)
        while self.at < len(text):
            self._definition()
            if self.starts(")"):
                raise self.error(self.at, "this ) closes no group")

    def error(self, at: int, problem: str) -> InputError:
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return InputError(f"the grammar, line {line}, column {column}: {problem}")

    def _definition(self) -> None:
        start, name = self.at, self.match(_NAME)
        if name is None or not self.take("::="):
            raise self.error(start, 'expected a rule such as name ::= "text"')
        self._define(name, start)

    def _define(self, name: str, start: int) -> None:
        if name in self.trees:
            raise self.error(start, f"the rule {name!r} is defined twice; join the definitions with |")
        self.defined[name] = start
        self.trees[name] = self.choice()

    def item(self) -> Node | None:
        start, sign = self.at, self.text[self.at : self.at + 1]
        if sign in ("", "|", ")"):
            return None
        if sign in ('"', "'"):
            self.at += 1
            content = "".join(self._chars(start, sign))
            self.match(self.blank)
            return literal(content)
        if sign == "[":
            return self._class()
        if self.take("."):
            return char_class(ANY)
        if self.take("("):
            return self.group(start)
        name = self.match(_NAME)
        if name is None:
            raise self.error(start, f"unexpected {sign!r}; write literal text in quotes")
        if self.starts("::="):  # the name belongs to the next definition
            self.at = start
            return None
        return Use(name, start)

    def repeated(self, item: Node) -> Node:
        while (counts := self.counts()) is not None:
            low, high = counts
            item = Repetition(item=item, low=low, high=high)
        return item

    def _chars(self, start: int, end: str) -> list[str]:
        """Read characters and escapes up to a closing sign. In a class, an escaped `-` or `^` keeps its backslash."""
        chars = []
        while not self.starts(end):
            char = self.text[self.at : self.at + 1]
            if char in ("", "\n"):
                raise self.error(start, f"this {self.text[start]} is not closed on its line")
            self.at += 1
            if char == "\\":
                char = self._escape()
                if end == "]" and char in "-^":
                    char = "\\" + char
            chars.append(char)
        self.at += 1
        return chars

    def _escape(self) -> str:
        start, char = self.at - 1, self.text[self.at : self.at + 1]
        self.at += 1
        if char in _HEX_DIGITS:
            char = self.hex_char(start, _HEX_DIGITS[char])
            if "\ud800" <= char <= "\udfff":
                raise self.error(start, "half of a surrogate pair is not a character; write \\U and eight digits")
            return char
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isalnum() or not char:
            raise self.error(start, f"unknown escape \\{char}")
        return char

    def _class(self) -> Node:
        start = self.at
        self.at += 1
        negated = self.starts("^")
        self.at += negated
        inside = self._chars(start, "]")
        self.match(self.blank)
        ranges: list[tuple[int, int]] = []
        i = 0
        while i < len(inside):
            low = high = inside[i]
            if i + 2 < len(inside) and inside[i + 1] == "-":
                high = inside[i + 2]
                i += 2
            ranges.append((ord(low[-1]), ord(high[-1])))
            if ranges[-1][0] > ranges[-1][1]:
                raise self.error(start, f"the range {low}-{high} runs backwards")
            i += 1
        term = char_class(complement(union(ranges)) if negated else union(ranges))
        if term is NOTHING:
            raise self.error(start, "this class contains no character")
        return term
