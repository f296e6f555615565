"""Excerpts of documents: Markdown and JSON of packages under permissive licences, cut between blocks.

The packages are wheels (`packages.toml`), downloaded and checked as those of the Python corpus. Markdown is the long
description in their metadata, and files inside. JSON is written anew with indentation, one value per line.
"""

import hashlib
import itertools
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.documents.damage import places
from examples.documents.structure import KINDS, PARSER, value
from examples.python_infill.wheels import Package, decode, read_metadata
from gesso.eval.task import split_of

FEWEST_LINES, MOST_LINES = 6, 40
MOST_TOKENS = 240
LINE_TOKENS = 39  # with its line break: three lines and their numbers must fit on a canvas of 128
LINE_CHARACTERS = 200
PACKAGE_EXCERPTS, FILE_EXCERPTS = 300, 100  # most of one package or file, and kind: none should dominate
READ = 2_000_000  # bytes of a file
FILE_PARTS = 400  # of a JSON file that are considered: coordinates and the like are mostly unsuitable
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
    """Yield the excerpts of a package, from its files in random order, up to the limits."""
    room = dict.fromkeys(KINDS, PACKAGE_EXCERPTS)
    for path, text in _files(wheel, room):
        kind = _kind(path)
        pieces = json_pieces(text, count) if kind == "json" else markdown_pieces(text, count)
        for number, piece in enumerate(itertools.islice(pieces, min(room[kind], FILE_EXCERPTS))):
            room[kind] -= 1
            yield Excerpt(
                kind=kind,
                text=piece,
                source=f"{package.name}=={package.version}/{path}:{number}",
                license=package.license,
                split=split_of(family(package.name)),
            )


def family(package: str) -> str:
    """Return the first word of a package's name. Packages of one project are alike and share a split."""
    return re.split(r"[-_.]", package.lower())[0]


def _files(wheel: Path, room: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield paths and texts, of a kind only as long as there is room for it."""
    metadata = read_metadata(wheel)
    if (metadata["Description-Content-Type"] or "").startswith("text/markdown"):
        yield "README.md", str(metadata.get_payload() or metadata["Description"] or "").replace("\r\n", "\n")
    with zipfile.ZipFile(wheel) as archive:
        for info in sorted(archive.infolist(), key=lambda info: hashlib.sha256(info.filename.encode()).digest()):
            path = info.filename
            if not path.endswith((".md", ".json")) or info.file_size > READ or NOT_DOCUMENTS.search(path):
                continue
            if room[_kind(path)]:
                yield path, decode(archive.read(info))


def _kind(path: str) -> str:
    return "json" if path.endswith(".json") else "markdown"


def fits(lines: Sequence[str], count: Count) -> bool:
    if len(lines) > MOST_LINES or max(map(len, lines)) > LINE_CHARACTERS:
        return False
    tokens = [count(line) + 1 for line in lines]  # a line break is a token of its own
    return sum(tokens) <= MOST_TOKENS and max(tokens) <= LINE_TOKENS


# --- Markdown -------------------------------------------------------------------------------------------------------


def markdown_pieces(text: str, count: Count) -> Iterator[str]:
    """Yield consecutive blocks that fit together. Blocks that are too long are left out, but tables are shortened."""
    lines = text.split("\n")
    start = end = 0
    for token in PARSER.parse(text):
        if token.level or not token.map or token.nesting < 0:
            continue
        begin, after = token.map
        if fits(lines[start:after], count):
            end = after
            continue
        yield from _usable_markdown(lines[start:end])
        start, end = begin, after
        if token.type == "table_open":
            while end > begin + 3 and not fits(lines[begin:end], count):
                end -= 1
        if not fits(lines[begin:end], count):
            start = after
        elif end < after:
            yield from _usable_markdown(lines[begin:end])
            start = after
    yield from _usable_markdown(lines[start:end])


def _usable_markdown(lines: list[str]) -> Iterator[str]:
    text = "\n".join(lines).strip("\n")
    is_long = text.count("\n") + 1 >= FEWEST_LINES
    if is_long and not UNUSABLE.search(text) and len({place.rule for place in places("markdown", text)}) >= RULES:
        yield text


# --- JSON -----------------------------------------------------------------------------------------------------------


def json_pieces(text: str, count: Count) -> Iterator[str]:
    """Yield objects and arrays that fit, and consecutive members of those that do not."""
    indent = 2 + 2 * (len(text) % 2)

    def is_short(part: Any) -> bool:
        return _nodes(part) <= MOST_LINES and fits(_dumped(part, indent).split("\n"), count)

    for piece in itertools.islice(_parts(value(text), is_short), FILE_PARTS):
        found = _dumped(piece, indent)
        if found.count("\n") + 1 >= FEWEST_LINES and not UNUSABLE.search(found) and found.count('": ') >= 3:
            yield found


def _dumped(part: Any, indent: int) -> str:
    return json.dumps(part, indent=indent, ensure_ascii=False)


def _nodes(part: Any) -> int:
    """Return the number of values in a value, but stop counting early."""
    total, left = 0, [part]
    while left and total <= MOST_LINES:
        last = left.pop()
        total += 1
        left += last.values() if isinstance(last, dict) else last if isinstance(last, list) else ()
    return total


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
