"""Excerpts of documents: Markdown and JSON of packages under permissive licences, cut between blocks.

The packages are wheels (`packages.toml`), downloaded and checked as those of the Python corpus. Markdown is the long
description in their metadata, and files inside. JSON is written anew with indentation, because most files have none.
"""

import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.documents.damage import places
from examples.documents.structure import PARSER, value
from examples.python_infill.wheels import Package, decode, read_metadata
from gesso.eval.task import split_of

FEWEST_LINES, MOST_LINES = 10, 40
MOST_TOKENS = 220
LINE_TOKENS = 36  # three lines must fit on a canvas of 128
PACKAGE_EXCERPTS = 120  # most of one package and kind: none should dominate
READ = 2_000_000  # bytes of a file
RULES = 2  # a Markdown excerpt has at least so many kinds of structure
SHARED = 0.5  # an excerpt with a larger share of its lines in earlier ones is a copy
# Texts that a tokenizer would encode as special tokens, and tabs, which separate line numbers from lines.
UNUSABLE = re.compile(r"<\||\|>|<(pad|eos|bos|unk|unused\d+|0x\w\w)>|[\t\r\x0b\x0c\x1c-\x1f\x85\u2028\u2029]")
NOT_DOCUMENTS = re.compile(r"licen[sc]e|copying|notice|third.?party|(^|/)(_?vendor(ed)?|node_modules)/", re.I)

Count = Callable[[str], int]  # the tokens of a line


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    kind: str
    text: str
    source: str  # name==version/path
    license: str
    split: str


def excerpts(package: Package, wheel: Path, count: Count) -> Iterator[Excerpt]:
    """Yield the excerpts of a package, as many of each kind as are allowed, evenly from all its files."""
    label = f"{package.name}=={package.version}"
    found: dict[str, dict[str, str]] = {"markdown": {}, "json": {}}
    for path, text in _files(wheel):
        kind = "json" if path.endswith(".json") else "markdown"
        pieces = json_pieces(text, count) if kind == "json" else markdown_pieces(text, count)
        for number, piece in enumerate(pieces):
            found[kind][f"{label}/{path}:{number}"] = piece
    for kind, by_source in found.items():
        # In random order, so that the limit keeps a fair sample.
        chosen = sorted(by_source, key=lambda source: hashlib.sha256(source.encode()).digest())[:PACKAGE_EXCERPTS]
        for source in sorted(chosen):
            yield Excerpt(
                kind=kind,
                text=by_source[source],
                source=source,
                license=package.license,
                split=split_of(family(package.name)),
            )


def family(package: str) -> str:
    """Return the first word of a package's name. Packages of one project are alike and share a split."""
    return re.split(r"[-_.]", package.lower())[0]


def _files(wheel: Path) -> Iterator[tuple[str, str]]:
    metadata = read_metadata(wheel)
    if (metadata["Description-Content-Type"] or "").startswith("text/markdown"):
        yield "README.md", (metadata.get_payload() or metadata["Description"] or "").replace("\r\n", "\n")
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = info.filename
            if path.endswith((".md", ".json")) and info.file_size <= READ and not NOT_DOCUMENTS.search(path):
                yield path, decode(archive.read(info))


def fits(lines: list[str], count: Count) -> bool:
    tokens = [count(line) + 1 for line in lines]  # a line break is a token of its own
    return len(lines) <= MOST_LINES and sum(tokens) <= MOST_TOKENS and max(tokens) <= LINE_TOKENS


# --- Markdown -------------------------------------------------------------------------------------------------------


def markdown_pieces(text: str, count: Count) -> Iterator[str]:
    """Yield consecutive blocks that fit together. Blocks that are too long are left out."""
    lines = [line.rstrip("\n") for line in text.split("\n")]
    blocks = [token.map for token in PARSER.parse(text) if token.level == 0 and token.map and token.nesting >= 0]
    start = end = 0
    for begin, after in (*blocks, [len(lines), len(lines) + MOST_LINES + 1]):
        if after > len(lines) or not fits(lines[start:after], count):
            yield from _usable_markdown(lines[start:end])
            start = begin if after <= len(lines) and fits(lines[begin:after], count) else after
        end = after


def _usable_markdown(lines: list[str]) -> Iterator[str]:
    text = "\n".join(lines).strip("\n")
    is_long = text.count("\n") + 1 >= FEWEST_LINES
    if is_long and not UNUSABLE.search(text) and len({place.rule for place in places("markdown", text)}) >= RULES:
        yield text


# --- JSON -----------------------------------------------------------------------------------------------------------


def json_pieces(text: str, count: Count) -> Iterator[str]:
    """Yield objects and arrays that fit, and consecutive members of those that do not."""
    indent = 2 + 2 * (len(text) % 2)
    for piece in _parts(value(text), lambda part: fits(_dumped(part, indent).split("\n"), count)):
        found = _dumped(piece, indent)
        if found.count("\n") + 1 >= FEWEST_LINES and not UNUSABLE.search(found) and found.count('": ') >= 3:
            yield found


def _dumped(part: Any, indent: int) -> str:
    return json.dumps(part, indent=indent, ensure_ascii=False)


def _parts(part: Any, is_short: Callable[[Any], bool]) -> Iterator[Any]:
    if not isinstance(part, (dict, list)) or not part:
        return
    if is_short(part):
        yield part
        return
    group: Any = type(part)()
    for key, member in part.items() if isinstance(part, dict) else enumerate(part):
        for larger in (_with(group, key, member), _with(type(part)(), key, member)):
            if is_short(larger):
                if len(larger) == 1 and group:
                    yield group
                group = larger
                break
        else:
            yield from _parts(member, is_short)
    if group:
        yield group


def _with(group: Any, key: Any, member: Any) -> Any:
    return {**group, key: member} if isinstance(group, dict) else [*group, member]


# --- copies ---------------------------------------------------------------------------------------------------------


class Copies:
    """Recognizes excerpts that share most of their lines with earlier ones."""

    def __init__(self) -> None:
        self._lines: set[str] = set()

    def has(self, text: str) -> bool:
        telling = {re.sub(r"[\d\s]+", "", line) for line in text.split("\n")}
        telling = {line for line in telling if len(line) >= 12}
        if len(telling & self._lines) > SHARED * len(telling):
            return True
        self._lines |= telling
        return False
