"""Read the rows of data files and hub datasets as JSON text: from JSON lines, JSON arrays and Parquet."""

import gzip
import json
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from gesso.checkpoint.datasets import DatasetName, find_dataset
from gesso.errors import InputError
from gesso.files import TEXT_LIMIT, read_text

LINES = (".jsonl", ".jsonl.gz", ".jsonl.xz", ".jsonl.zst")
SUFFIXES = (*LINES, ".json", ".parquet")
WITHIN_ARRAY = re.compile(r"[\s,]*")
PARQUET_ROWS = 256  # converted at a time


def is_data(name: str) -> bool:
    """Return whether the name is that of a data file or of a hub dataset."""
    return name.endswith(SUFFIXES) or DatasetName.parse(name) is not None


def is_local(name: str) -> bool:
    """Return whether the name is that of a file of this machine, not of a hub dataset."""
    return Path(name).is_file() or DatasetName.parse(name) is None


def size(name: str) -> int:
    """Return the size of the data in bytes. A hub dataset is downloaded if it is not here."""
    return sum(path.stat().st_size for path in paths(name))


def paths(name: str) -> list[Path]:
    """Return the local files of a name: the file itself, or those of a hub dataset."""
    if Path(name).is_file():
        return [Path(name)]
    dataset = None if name.endswith(SUFFIXES) and name.count(":") == 0 else DatasetName.parse(name)
    if dataset is None:
        raise InputError(f"{name}: no such file; relative paths start at {Path.cwd()}")
    return find_dataset(dataset, SUFFIXES)


def lines(names: Sequence[str]) -> Iterator[tuple[int, int, bytes]]:
    """Yield each row: index of its name, line number (or row number) from 1, and JSON text."""
    for file, name in enumerate(names):
        rows = chain.from_iterable(map(_rows, paths(name)))
        for line, raw in enumerate(rows, start=1):
            yield file, line, raw


def _rows(path: Path) -> Iterator[bytes]:
    name = str(path)
    try:
        if name.endswith(".parquet"):
            yield from _parquet_rows(path)
        elif name.endswith(".json"):
            yield from _json_rows(path)
        else:
            with open(path, "rb") as source:
                yield from _decompressed(name, source)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{name} cannot be read ({error}); if it is compressed, download it again") from error


# --- JSON -----------------------------------------------------------------------------------------------------------


def _json_rows(path: Path) -> Iterator[bytes]:
    """Yield the elements of an array as they are written. A .json file that has no array is read as JSON lines."""
    text = read_text(path, TEXT_LIMIT).removeprefix("\ufeff")
    at = len(text) - len(text.lstrip())
    if text[at : at + 1] != "[":
        yield from (line.encode() for line in text.removesuffix("\n").split("\n"))
        return
    decoder = json.JSONDecoder()
    while (at := WITHIN_ARRAY.match(text, at + 1).end()) < len(text) and text[at] != "]":  # type: ignore[union-attr]
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is not a JSON array: {error}; expected a list of rows, or JSON lines") from None
        yield text[at:end].encode()
        at = end - 1
    if text[at:].strip() != "]":
        raise InputError(f"{path} is not a JSON array: it does not end with one ]; download or write it again")


def _decompressed(name: str, source: BinaryIO) -> Iterable[bytes]:
    if name.endswith(".gz"):
        return gzip.open(source)
    if name.endswith(".xz"):
        return lzma.open(source)
    return _zstd_lines(source) if name.endswith(".zst") else source


def _zstd_lines(source: BinaryIO) -> Iterator[bytes]:
    rest = b""
    for data in _decompressed_zstd(source):
        *complete, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in complete)
    if rest:
        yield rest


def _decompressed_zstd(source: BinaryIO) -> Iterator[bytes]:
    zstandard = _package("zstandard", ".zst")
    # Frame by frame: the library's own reader stops silently after the first frame and at a truncated end.
    frame = None
    while data := source.read(1 << 16):
        while data:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                yield frame.decompress(data)
            except zstandard.ZstdError as error:
                raise OSError(str(error)) from error
            data = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame:
        raise EOFError("the file is truncated")


# --- Parquet --------------------------------------------------------------------------------------------------------


def _parquet_rows(path: Path) -> Iterator[bytes]:
    parquet = _package("pyarrow.parquet", ".parquet")
    invalid: Any = _package("pyarrow", ".parquet").ArrowException
    try:
        with parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(PARQUET_ROWS):
                # Bytes and dates, which JSON has not, are in columns that are not read.
                yield from (json.dumps(_given(row), default=str).encode() for row in batch.to_pylist())
    except invalid as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}; download it again") from None


def _given(value: Any) -> Any:
    """Return a value without nulls: in a Parquet file, every message has the fields of all messages."""
    if isinstance(value, dict):
        return {key: _given(item) for key, item in value.items() if item is not None}
    return [_given(item) for item in value] if isinstance(value, list) else value


def _package(name: str, suffix: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise InputError(f"reading {suffix} needs the package {package}: pip install 'gesso-lm[train]'") from error
