"""Damage: small changes of punctuation and white space that break the structure of a document.

Places come from a parser, so that text in a code block or in a JSON string is never taken for structure. Every damage
must break the document by itself.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from examples.documents.structure import PARSER, is_broken

MOST = 3  # damages per document
# How often a rule is drawn. The others, whose repairs depend on more than one line or word, have OFTEN.
WEIGHTS, OFTEN = {"heading": 1, "colon": 1, "code": 2, "comma": 2, "quote": 2}, 4
CODE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
STRONG = re.compile(r"(?<!\*)\*\*(?=\S)[^*\n]+(?<=\S)\*\*(?!\*)")
EMPHASIS = re.compile(r"(?<![*\w])\*(?=\S)[^*\n]+(?<=\S)\*(?![*\w])")
LINK = re.compile(r"\[([^\[\]\n]+)\]\([^()\s]+\)")
MARKER = re.compile(r"( *)(?:[-*+]|\d+[.)])( +)(?=\S)")
JSON_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\],:]')


@dataclass(frozen=True)
class Damage:
    """A change: the characters from start to end become `new`."""

    rule: str
    start: int
    end: int
    new: str = ""


def damage(kind: str, text: str, count: int, rng: random.Random) -> tuple[str, tuple[Damage, ...]]:
    """Return the text with `count` damages in different lines, or as many as it has places for, and the damages.

    The rule is drawn first and then its place, so that rare structures are damaged, too.
    """
    rules: dict[str, list[Damage]] = {}
    for place in places(kind, text):
        rules.setdefault(place.rule, []).append(place)
    chosen: list[Damage] = []
    lines: set[int] = set()
    while rules and len(chosen) < count:
        rule = rng.choices(sorted(rules), [WEIGHTS.get(rule, OFTEN) for rule in sorted(rules)])[0]
        place = rules[rule].pop(rng.randrange(len(rules[rule])))
        if not rules[rule]:
            del rules[rule]
        touched = set(range(text.count("\n", 0, place.start), text.count("\n", 0, place.end) + 1))
        if not touched & lines and is_broken(kind, changed(text, [place]), text):
            chosen.append(place)
            lines |= touched
    return changed(text, chosen), tuple(chosen)


def changed(text: str, damages: list[Damage]) -> str:
    for one in sorted(damages, key=lambda one: one.start, reverse=True):
        text = text[: one.start] + one.new + text[one.end :]
    return text


def places(kind: str, text: str) -> Iterator[Damage]:
    """Yield every damage that is possible, whether or not it breaks the document."""
    return _markdown(text) if kind == "markdown" else _json(text)


# --- Markdown -------------------------------------------------------------------------------------------------------


def _markdown(text: str) -> Iterator[Damage]:
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    prose: set[int] = set()
    for token in PARSER.parse(text):
        if token.map is None:
            continue
        first, last = token.map[0], token.map[1] - 1
        if token.type == "inline":
            prose.update(range(first, last + 1))
        elif token.type == "fence":
            yield from _fence(lines, starts, first, last, token.markup)
        elif token.type == "table_open":
            prose.update(range(first, last + 1))
            yield from _table(lines, starts, first, last)
        elif token.type == "heading_open" and token.markup.startswith("#") and lines[first].startswith("#"):
            yield Damage("heading", starts[first] + len(token.markup), starts[first] + len(token.markup) + 1)
        elif token.type == "list_item_open" and (marker := MARKER.match(lines[first])):
            yield from _item(starts[first], marker)
        elif token.type == "blockquote_open" and lines[first].startswith("> "):
            yield Damage("blockquote", starts[first], starts[first] + 2)
    for number in sorted(prose):
        yield from _inline(lines[number], starts[number])


def _fence(lines: list[str], starts: list[int], first: int, last: int, markup: str) -> Iterator[Damage]:
    for number in {first, last}:
        line = lines[number]
        if line.lstrip().startswith(markup):
            at = starts[number] + len(line) - len(line.lstrip())
            yield Damage("fence", at, at + 1)
            if line.strip() == markup:  # no language that would be lost
                yield from _whole_line("fence", starts, number, len(lines))


def _table(lines: list[str], starts: list[int], first: int, last: int) -> Iterator[Damage]:
    yield from _whole_line("table", starts, first + 1, len(lines))
    for number in range(first, last + 1):
        for bar in re.finditer(r"\|", lines[number]):
            yield Damage("table", starts[number] + bar.start(), starts[number] + bar.end())


def _item(start: int, marker: re.Match[str]) -> Iterator[Damage]:
    yield Damage("list", start + marker.start(2), start + marker.end(2))
    if not any(map(str.isdigit, marker[0])):
        yield Damage("list", start + marker.end(1), start + marker.end())
    if marker[1]:
        yield Damage("list", start, start + marker.end(1))


def _inline(line: str, start: int) -> Iterator[Damage]:
    for rule, pattern, width in (("code", CODE, 1), ("emphasis", STRONG, 2), ("emphasis", EMPHASIS, 1)):
        for found in pattern.finditer(line):
            for length in range(1, width + 1):
                yield Damage(rule, start + found.start(), start + found.start() + length)
                yield Damage(rule, start + found.end() - length, start + found.end())
    for found in LINK.finditer(line):
        for at in (found.start(), found.end(1), found.end(1) + 1, found.end() - 1):
            yield Damage("link", start + at, start + at + 1)


def _whole_line(rule: str, starts: list[int], number: int, count: int) -> Iterator[Damage]:
    """Yield the loss of a line, unless it is the last."""
    if number < count - 1:
        yield Damage(rule, starts[number], starts[number + 1])


# --- JSON -----------------------------------------------------------------------------------------------------------


def _json(text: str) -> Iterator[Damage]:
    for token in JSON_TOKEN.finditer(text):
        mark, start, end = token[0], token.start(), token.end()
        if mark[0] == '"':
            yield Damage("quote", start, start + 1)
            yield Damage("quote", end - 1, end)
        elif mark == ",":
            yield Damage("comma", start, end)
        elif mark == ":":
            yield Damage("colon", start, end)
        else:
            yield from _bracket(text, start)


def _bracket(text: str, at: int) -> Iterator[Damage]:
    yield Damage("bracket", at, at + 1)
    if text[at] in "}]":
        yield Damage("bracket", at, at + 1, "]" if text[at] == "}" else "}")
        before = text[:at].rstrip()
        if before[-1] not in "{[":
            yield Damage("comma", len(before), len(before), ",")
    begin, end = text.rfind("\n", 0, at) + 1, text.find("\n", at) + 1
    if end and not any(map(str.isalnum, text[begin:end])):
        yield Damage("bracket", begin, end)
