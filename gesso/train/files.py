"""Read the lines of JSON-lines files, compressed or not."""

import gzip
import lzma
import zlib
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

from gesso.errors import InputError

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.xz", ".jsonl.zst")


def size(name: str) -> int:
    if not Path(name).is_file():
        raise InputError(f"{name}: no such file; relative paths start at {Path.cwd()}")
    return Path(name).stat().st_size


def lines(names: Sequence[str]) -> Iterator[tuple[int, int, bytes]]:
    """Yield each line: index of its file, line number from 1, and bytes."""
    for file, name in enumerate(names):
        try:
            with open(name, "rb") as source:
                for line, raw in enumerate(_decompressed(name, source), start=1):
                    yield file, line, raw
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise InputError(f"{name} cannot be read ({error}); if it is compressed, download it again") from error


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
    try:
        zstandard = import_module("zstandard")
    except ImportError as error:
        raise InputError("reading .zst needs the package zstandard: pip install '.[train]' in the clone") from error
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
