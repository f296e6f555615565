"""Parse GGUF files of version 2 and 3, little-endian: metadata, and where each tensor is.

The header is read through a buffered file, value by value. It comes from other people, so nothing in it is trusted: a
count or length is compared with the bytes that are left before anything is allocated.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gesso.checkpoint.gguf.types import BY_NUMBER, OTHERS, TYPES, Type, row_bytes
from gesso.checkpoint.stored import Stored
from gesso.checks import is_integer, shown
from gesso.errors import CheckpointError
from gesso.files import check_regular

MAGIC, VERSIONS = b"GGUF", (2, 3)
# Numbers of value types.
BOOL = 7
STRING = 8
ARRAY = 9
SCALARS: Mapping[int, np.dtype[Any]] = {
    number: np.dtype(name)
    for number, name in (
        *((0, "<u1"), (1, "<i1"), (2, "<u2"), (3, "<i2"), (4, "<u4"), (5, "<i4"), (6, "<f4"), (BOOL, "<u1")),
        *((10, "<u8"), (11, "<i8"), (12, "<f8")),
    )
}
# The header of the 26B has 15 MB, most of it the vocabulary, and 47 MB with the whole tokenizer.json.
HEADER_LIMIT = 128 << 20
MOST_ELEMENTS = 1 << 22  # of an array; the 26B has half a million merges
MOST_ENTRIES = 1 << 16  # of the metadata and of the table of tensors
NAME_LIMIT = 1 << 10  # bytes of a key or the name of a tensor
ALIGNMENT = 32  # of tensors, if the file does not say
PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file, or all parts of one. In the metadata, arrays of numbers are numpy arrays, those of strings lists."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Stored]


def read(path: Path, header_limit: int = HEADER_LIMIT) -> GgufFile:
    """Parse a file. If it is a part of several (`-00001-of-00003.gguf`), parse all of them."""
    file = _read(path, header_limit)
    count = file.metadata.get("split.count", 1)
    if not is_integer(count) or not 0 <= count <= 99_999:
        raise CheckpointError(f"{path}: split.count must be a number of files, got {shown(count)}")
    return file if count < 2 else _join(path, count, header_limit)


def _join(path: Path, count: int, header_limit: int) -> GgufFile:
    named = PART.fullmatch(path.name)
    if named is None or int(named[3]) != count:
        raise CheckpointError(
            f"{path} is one of {count} parts, but its name does not end in -00001-of-{count:05}.gguf; "
            "give all parts the names they were published with"
        )
    paths = [path.with_name(f"{named[1]}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    if missing := [part.name for part in paths if not part.exists()]:
        raise CheckpointError(
            f"{missing[0]} is missing: {path} is one of {count} parts; download all of them into one directory"
        )
    parts = [_read(part, header_limit) for part in paths]
    tensors: dict[str, Stored] = {}
    for i, part in enumerate(parts):
        if part.metadata.get("split.count") != count or part.metadata.get("split.no") != i:
            raise CheckpointError(f"{part.path} is not part {i + 1} of {count}; download the parts again")
        if twice := tensors.keys() & part.tensors.keys():
            raise CheckpointError(f"{part.path}: tensor {min(twice)} is also in an earlier part; download it again")
        tensors |= part.tensors
    return GgufFile(path=paths[0], metadata=parts[0].metadata, tensors=tensors)


def _read(path: Path, header_limit: int) -> GgufFile:
    try:
        check_regular(path)
        with path.open("rb") as stream:
            return _parse(_Header(path, stream, path.stat().st_size, header_limit))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None


class _Header:
    """The bytes of a header in order, with errors that name the file. It never reads past the end."""

    def __init__(self, path: Path, stream: BinaryIO, size: int, limit: int) -> None:
        self.path = path
        self.stream = stream
        self.size = size
        self.limit = limit
        self.position = 0

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {problem}; download it again")

    def bytes(self, count: int, what: str) -> bytes:
        self.reserve(count, what)
        data = self.stream.read(count)
        if len(data) != count:  # the file shrank
            raise self.error(f"it ends within {what}")
        self.position += count
        return data

    def reserve(self, count: int, what: str) -> None:
        """Raise an error unless this many bytes can follow."""
        if self.position + count > min(self.size, self.limit):
            if self.size <= self.limit:
                raise self.error(f"it ends within {what}: the file is truncated or damaged")
            raise self.error(f"the header is larger than {self.limit / 2**20:g} MiB in {what}: the file is damaged")

    def number(self, format: str, what: str) -> int:
        value: int = struct.unpack("<" + format, self.bytes(struct.calcsize(format), what))[0]
        return value

    def count(self, most: int, least_bytes: int, what: str) -> int:
        """Read the number of entries that follow, each of which takes at least `least_bytes`."""
        count = self.number("Q", what)
        if count > most:
            raise self.error(f"{what} has {count:,} entries, at most {most:,} are possible: the file is damaged")
        self.reserve(count * least_bytes, what)
        return count

    def string(self, what: str, limit: int = HEADER_LIMIT) -> str:
        length = self.number("Q", what)
        if length > limit:
            raise self.error(f"{what} is a string of {length:,} bytes, at most {limit:,} are possible")
        data = self.bytes(length, what)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"{what} is not UTF-8 text: {shown(data)}") from None


def _parse(header: _Header) -> GgufFile:
    magic = header.bytes(4, "the magic number")
    if magic != MAGIC:
        raise CheckpointError(f"{header.path} is not a GGUF file: it starts with {magic!r}, expected {MAGIC!r}")
    version = header.number("I", "the version")
    if version not in VERSIONS:
        order = "; it is big-endian, convert it" if version in [v << 24 for v in VERSIONS] else ""
        raise CheckpointError(f"{header.path}: GGUF version {version} is not supported, expected 2 or 3{order}")
    tensor_count = header.count(MOST_ENTRIES, 24, "the table of tensors")
    metadata: dict[str, Any] = {}
    for _ in range(header.count(MOST_ENTRIES, 13, "the metadata")):
        key = header.string("a metadata key", NAME_LIMIT)
        if key in metadata:
            raise header.error(f"metadata key {shown(key)} appears twice")
        metadata[key] = _value(header, f"metadata key {shown(key)}")
    entries = [_entry(header) for _ in range(tensor_count)]
    tensors = _placed(header, entries, _alignment(header, metadata))
    return GgufFile(path=header.path, metadata=metadata, tensors=tensors)


def _value(header: _Header, what: str) -> Any:
    kind = header.number("I", what)
    if kind == STRING:
        return header.string(what)
    if kind == ARRAY:
        return _array(header, what)
    value = _scalars(header, kind, 1, what)[0]
    # A float32 becomes the shortest decimal that rounds to it: 1e-06, not 9.999999974752427e-07.
    return float(str(value)) if isinstance(value, np.float32) else value.item()


def _array(header: _Header, what: str) -> Any:
    kind = header.number("I", what)
    if kind == STRING:
        return [header.string(what) for _ in range(header.count(MOST_ELEMENTS, 8, what))]
    return _scalars(header, kind, header.count(MOST_ELEMENTS, 1, what), what)


def _scalars(header: _Header, kind: int, count: int, what: str) -> np.ndarray[Any, Any]:
    dtype = SCALARS.get(kind)
    if dtype is None:  # includes arrays of arrays, which no model uses
        raise header.error(f"{what} has type {kind}, which is unknown here")
    values = np.frombuffer(header.bytes(count * dtype.itemsize, what), dtype)
    if kind != BOOL:
        return values
    if values.size and values.max() > 1:
        raise header.error(f"{what} must be true or false (1 or 0), got {values.max()}")
    return values.astype(bool)


def _alignment(header: _Header, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not is_integer(alignment) or not 1 <= alignment <= 1 << 16 or alignment & (alignment - 1):
        raise header.error(f"general.alignment must be a power of two up to 65,536, got {shown(alignment)}")
    return int(alignment)


# --- tensors ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    type: Type
    offset: int  # from the end of the header

    @property
    def nbytes(self) -> int:
        return prod(self.shape[:-1]) * row_bytes(self.type, self.shape[-1])


def _entry(header: _Header) -> _Entry:
    name = header.string("the name of a tensor", NAME_LIMIT)
    what = f"tensor {shown(name)}"
    dimensions = header.number("I", what)
    if not 1 <= dimensions <= 4:
        raise header.error(f"{what} has {dimensions} dimensions, expected 1 to 4")
    shape = tuple(reversed([header.number("Q", what) for _ in range(dimensions)]))
    number = header.number("I", what)
    offset = header.number("Q", what)
    if number not in BY_NUMBER:
        raise CheckpointError(
            f"{header.path}: {what} has type {OTHERS.get(number, number)}, which gesso does not read; "
            f"use a file that has only {', '.join(TYPES)}"
        )
    type = BY_NUMBER[number]
    if 0 in shape or shape[-1] % type.values:
        raise header.error(f"{what} has shape {list(shape)}, which is not a whole number of {type.name} blocks")
    return _Entry(name, shape, type, offset)


def _placed(header: _Header, entries: list[_Entry], alignment: int) -> dict[str, Stored]:
    """Return the tensors by name, after checking that each has its own aligned place in the file."""
    start = -(-header.position // alignment) * alignment
    end = start
    before = ""
    tensors: dict[str, Stored] = {}
    for entry in sorted(entries, key=lambda entry: entry.offset):
        what = f"tensor {shown(entry.name)}"
        offset = start + entry.offset
        if entry.name in tensors:
            raise header.error(f"{what} appears twice")
        if entry.offset % alignment:
            raise header.error(f"{what} is at offset {entry.offset:,}, which is not a multiple of {alignment}")
        if offset + entry.nbytes > header.size:
            missing = offset + entry.nbytes - header.size
            raise header.error(
                f"{what} ends {missing:,} bytes after the end of the file, which is truncated or damaged"
            )
        if offset < end:
            raise header.error(f"{what} overlaps with tensor {shown(before)}")
        end = offset + entry.nbytes
        before = entry.name
        tensors[entry.name] = Stored(
            name=entry.name,
            file=header.path,
            offset=offset,
            nbytes=entry.nbytes,
            dtype=entry.type.name,
            shape=entry.shape,
        )
    return {entry.name: tensors[entry.name] for entry in entries}
