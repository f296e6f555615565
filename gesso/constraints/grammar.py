"""A grammar in the EBNF that llama.cpp and vLLM read, to a regular expression.

    root   ::= "[" (number ("," number)*)? "]"   # rules are name ::= what it stands for; the text is a `root`
    number ::= "-"? [0-9]{1,3} | 'none'

Literals stand in single or double quotes, classes in brackets, `.` is any character, `|` separates alternatives, and
`* + ? {2} {2,} {2,5}` repeat what stands before them. Escapes: `\\n \\r \\t \\xHH \\uHHHH \\UHHHHHHHH`, and `\\` before
any sign. A rule that ends with itself is a loop; any other recursion is written out to `limits.depth` levels.
"""

import re
from dataclasses import dataclass

from gesso.constraints.charset import ANY, Ranges, char_class, complement, union
from gesso.constraints.limits import Limits
from gesso.constraints.regex import EMPTY, Piece, alt, check, quote, repeat, seq
from gesso.constraints.syntax import MARKS, Choice, Repeat, Sequence, Tree
from gesso.errors import InputError

ROOT = "root"
LEVELS = 120
"""Rules and groups within each other."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_NUMBER = re.compile(r"[0-9]{1,18}")
_HEX = {"x": 2, "u": 4, "U": 8}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    at: int


Node = Tree[Piece | Rule]


def grammar_regex(text: str, *, limits: Limits = Limits()) -> str:  # noqa: B008 (immutable)
    """The expression, in the syntax of Rust's `regex` crate, to be matched against the whole text."""
    if len(text) > limits.schema_bytes:
        raise InputError(
            f"the grammar is longer than {limits.schema_bytes:,} characters (limits.schema_bytes); "
            "shorten it or raise the limit"
        )
    grammar = _Parser(text)
    grammar.rules()
    _check_names(grammar)
    _check_left_recursion(grammar)
    writer = _Writer(grammar, limits)
    piece = writer.rule(grammar.named[ROOT], frozenset(), 0)
    if piece is None:
        raise InputError(
            f"the grammar has no end: within {limits.depth} levels (limits.depth) its rules never come to a text. "
            "Give each recursive rule an alternative that does not use it."
        )
    return piece.text


def _check_names(grammar: "_Parser") -> None:
    if ROOT not in grammar.bodies:
        raise InputError(f"the grammar has no rule {ROOT!r}: {ROOT} ::= ... says what the whole text is")
    used, waiting = {ROOT}, [ROOT]
    while waiting:
        for rule in _rules(grammar.bodies[waiting.pop()]):
            if rule.name not in grammar.bodies:
                raise grammar.error(rule.at, f"there is no rule {rule.name!r}")
            if rule.name not in used:
                used.add(rule.name)
                waiting.append(rule.name)
    for name, rule in grammar.named.items():
        if name not in used:
            raise grammar.error(rule.at, f"the rule {name!r} is never used; drop it")


def _rules(node: Node) -> list[Rule]:
    match node:
        case Rule():
            return [node]
        case Sequence(items) | Choice(items):
            return [rule for item in items for rule in _rules(item)]
        case Repeat(item):
            return _rules(item)
    return []


def _check_left_recursion(grammar: "_Parser") -> None:
    empty = _empty_rules(grammar)
    first = {name: _leading(body, empty) for name, body in grammar.bodies.items()}
    done: set[str] = set()
    for name in first:
        path, waiting = {name}, [(name, iter(first[name]))]
        while waiting:
            here, leading = waiting[-1]
            rule = next((rule for rule in leading if rule.name not in done), None)
            if rule is None:
                waiting.pop()
                path.discard(here)
                done.add(here)
            elif rule.name in path:
                advice = "Put what is certain first, or use * or +"
                raise grammar.error(rule.at, f"left recursion: {rule.name!r} starts with itself. {advice}")
            else:
                path.add(rule.name)
                waiting.append((rule.name, iter(first[rule.name])))


def _empty_rules(grammar: "_Parser") -> set[str]:
    """The rules that can stand for no text at all."""
    users: dict[str, list[str]] = {}
    for name, body in grammar.bodies.items():
        for rule in _rules(body):
            users.setdefault(rule.name, []).append(name)
    empty: set[str] = set()
    waiting = list(grammar.bodies)
    while waiting:
        name = waiting.pop()
        if name not in empty and _may_be_empty(grammar.bodies[name], empty):
            empty.add(name)
            waiting.extend(users.get(name, ()))
    return empty


def _may_be_empty(node: Node, empty: set[str]) -> bool:
    match node:
        case Rule(name):
            return name in empty
        case Sequence(items):
            return all(_may_be_empty(item, empty) for item in items)
        case Choice(items):
            return any(_may_be_empty(item, empty) for item in items)
        case Repeat(item, low):
            return low == 0 or _may_be_empty(item, empty)
    return node == EMPTY


def _leading(node: Node, empty: set[str]) -> list[Rule]:
    """The rules that the text of a node can start with."""
    match node:
        case Rule():
            return [node]
        case Choice(items):
            return [rule for item in items for rule in _leading(item, empty)]
        case Repeat(item):
            return _leading(item, empty)
        case Sequence(items):
            sure = next((i for i, item in enumerate(items) if not _may_be_empty(item, empty)), len(items))
            return [rule for item in items[: sure + 1] for rule in _leading(item, empty)]
    return []


def _endings(items: tuple[Node, ...], name: str) -> list[tuple[Node, ...]]:
    """The same sequence as alternatives, so that a rule at its very end stands there by itself."""
    last = items[-1] if items else EMPTY
    if not any(rule.name == name for rule in _rules(last)):
        return [items]
    match last:
        case Sequence(inner):
            return _endings((*items[:-1], *inner), name)
        case Choice(options):
            return [ending for option in options for ending in _endings((*items[:-1], option), name)]
        case Repeat(item, 0, 1):
            return [items[:-1], *_endings((*items[:-1], item), name)]
    return [items]


class _Writer:
    def __init__(self, grammar: "_Parser", limits: Limits) -> None:
        self.grammar, self.limits, self.written = grammar, limits, 0
        self.known: dict[tuple[str, frozenset[tuple[str, int]]], Piece | None] = {}

    def rule(self, rule: Rule, entered: frozenset[tuple[str, int]], level: int) -> Piece | None:
        """What a rule stands for; `None` where recursion has gone too far."""
        times = dict(entered)
        times[rule.name] = times.get(rule.name, 0) + 1
        if times[rule.name] > self.limits.depth:
            return None
        inside = frozenset(times.items())
        if (rule.name, inside) not in self.known:
            self.known[rule.name, inside] = self._loop(rule.name, inside, level)
        return self.known[rule.name, inside]

    def _loop(self, name: str, entered: frozenset[tuple[str, int]], level: int) -> Piece | None:
        """`list ::= item "," list | item` is `(item ",")* item`: no depth limits it."""
        again: list[Piece | None] = []
        ends: list[Piece | None] = []
        body = self.grammar.bodies[name]
        for items in _endings((body,), name):
            last = items[-1] if items else EMPTY
            if isinstance(last, Rule) and last.name == name:
                again.append(self.write(Sequence(items[:-1]), entered, level))
            else:
                ends.append(self.write(Sequence(items), entered, level))
        repeated, end = alt(again), alt(ends)
        check([repeated, end], self.limits, f"the rule {name!r}")
        if end is None or repeated is None:
            return end
        return seq(repeat(repeated, 0, None), end)

    def write(self, node: Node, entered: frozenset[tuple[str, int]], level: int) -> Piece | None:
        self.written += 1
        if self.written > self.limits.regex_chars // 20:
            raise InputError("the grammar grows too large once its recursion is written out; lower limits.depth")
        if level > LEVELS:
            raise InputError(f"the grammar nests deeper than {LEVELS} levels of rules and groups")
        match node:
            case Rule():
                return self.rule(node, entered, level + 1)
            case Choice(items):
                options = [self.write(item, entered, level + 1) for item in items]
                check(options, self.limits, "the grammar")
                return alt(options)
            case Sequence(items):
                parts = [self.write(item, entered, level + 1) for item in items]
                check(parts, self.limits, "the grammar")
                return None if None in parts else seq(*(part for part in parts if part is not None))
            case Repeat(item, low, high):
                part = self.write(item, entered, level + 1)
                if part is None:
                    return EMPTY if low == 0 else None
                return repeat(part, low, high)
        return node


class _Parser:
    """Reads the rules into `bodies`; `named` says where each stands."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.level = text, 0, 0
        self.bodies: dict[str, Node] = {}
        self.named: dict[str, Rule] = {}

    def error(self, at: int, what: str) -> InputError:
        line, column = self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at)
        return InputError(f"the grammar, line {line}, column {column}: {what}")

    def rules(self) -> None:
        self._blank()
        while self.at < len(self.text):
            at = self.at
            name = self._name()
            if name is None or not self._take("::="):
                raise self.error(at, 'expected a rule, like name ::= "text"')
            if name in self.bodies:
                raise self.error(at, f"the rule {name!r} is there twice; join them with |")
            self.named[name] = Rule(name, at)
            self.bodies[name] = self._choice()
            if self.text.startswith(")", self.at):
                raise self.error(self.at, "this ) closes nothing")

    def _blank(self) -> None:
        found = _BLANK.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _take(self, sign: str) -> bool:
        if not self.text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        self._blank()
        return True

    def _name(self) -> str | None:
        found = _NAME.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        self._blank()
        return found.group()

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while (item := self._item()) is not None:
            items.append(self._repeated(item))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _item(self) -> Node | None:
        at, sign = self.at, self.text[self.at : self.at + 1]
        if sign in ("", "|", ")"):
            return None
        if sign in ('"', "'"):
            self.at += 1
            literal = "".join(self._chars(at, sign))
            return quote(literal) if literal else EMPTY
        if sign == "[":
            return self._class()
        if self._take("."):
            return char_class(ANY)
        if self._take("("):
            self.level += 1
            if self.level > LEVELS:
                raise self.error(at, f"groups nest deeper than {LEVELS}")
            inside = self._choice()
            if not self._take(")"):
                raise self.error(at, "this ( is not closed")
            self.level -= 1
            return inside
        name = self._name()
        if name is None:
            raise self.error(at, f"{sign!r} is not known here; a text stands in quotes")
        if self.text.startswith("::=", self.at):  # the next rule
            self.at = at
            return None
        return Rule(name, at)

    def _repeated(self, item: Node) -> Node:
        while True:
            at = self.at
            mark = next((mark for mark in MARKS if self._take(mark)), None)
            if mark is not None:
                item = Repeat(item, *MARKS[mark])
            elif self._take("{"):
                low = self._number()
                high = (None if self.text.startswith("}", self.at) else self._number()) if self._take(",") else low
                if not self._take("}") or (high is not None and low > high):
                    raise self.error(at, "a repetition is written {2}, {2,} or {2,5}")
                item = Repeat(item, low, high)
            else:
                return item

    def _number(self) -> int:
        found = _NUMBER.match(self.text, self.at)
        if found is None:
            raise self.error(self.at, "a number of at most 18 digits was expected")
        self.at = found.end()
        self._blank()
        return int(found.group())

    def _chars(self, start: int, end: str) -> list[str]:
        """Characters up to a closing sign, escapes read; in a class an escaped `-` or `^` keeps its backslash."""
        found = []
        while not self.text.startswith(end, self.at):
            char = self.text[self.at : self.at + 1]
            if char in ("", "\n"):
                raise self.error(start, f"this {self.text[start]} is not closed on its line")
            self.at += 1
            found.append(self._escape(end) if char == "\\" else char)
        self.at += 1
        self._blank()
        return found

    def _escape(self, end: str) -> str:
        at = self.at - 1
        char = self.text[self.at : self.at + 1]
        self.at += 1
        if char in _HEX:
            digits = self.text[self.at : self.at + _HEX[char]]
            if len(digits) < _HEX[char] or not re.fullmatch("[0-9a-fA-F]+", digits) or int(digits, 16) > 0x10FFFF:
                raise self.error(at, f"\\{char} is followed by {_HEX[char]} hexadecimal digits of a character")
            self.at += len(digits)
            char = chr(int(digits, 16))
            if "\ud800" <= char <= "\udfff":
                raise self.error(at, "half of a surrogate pair is no character; write \\U and eight digits")
        elif char in _CONTROLS:
            char = _CONTROLS[char]
        elif char.isalnum() or not char:
            raise self.error(at, f"the escape \\{char} is not known")
        return "\\" + char if end == "]" and char in "-^" else char

    def _class(self) -> Node:
        start = self.at
        self.at += 1
        negated = self.text.startswith("^", self.at)
        self.at += negated
        inside = self._chars(start, "]")
        ranges: list[tuple[int, int]] = []
        i = 0
        while i < len(inside):
            low, high = inside[i], inside[i]
            if i + 2 < len(inside) and inside[i + 1] == "-":
                high = inside[i + 2]
                i += 2
            ranges.append((ord(low[-1]), ord(high[-1])))
            if ranges[-1][0] > ranges[-1][1]:
                raise self.error(start, f"the range {low}-{high} runs backwards")
            i += 1
        found: Ranges = union(ranges)
        piece = char_class(complement(found) if negated else found)
        if piece is None:
            raise self.error(start, "this class holds no character")
        return piece
