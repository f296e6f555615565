"""Files of JSON lines, packed or not, as lines."""

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
        raise InputError(f"{name}: no such file; paths are taken from {Path.cwd()}")
    return Path(name).stat().st_size


def lines(names: Sequence[str]) -> Iterator[tuple[int, int, bytes, int]]:
    """File, line, its bytes, and how many bytes have been read of all files (packed ones, where they are)."""
    done = 0
    for file, name in enumerate(names):
        try:
            with open(name, "rb") as source:
                for line, raw in enumerate(_unpacked(name, source), start=1):
                    yield file, line, raw, done + source.tell()
                done += source.tell()
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise InputError(f"{name} cannot be read ({error}): if it is an archive, fetch it again") from error


def _unpacked(name: str, source: BinaryIO) -> Iterable[bytes]:
    if name.endswith((".gz", ".xz")):
        return _archive_lines(gzip.open(source) if name.endswith(".gz") else lzma.open(source))
    return _zstd_lines(source) if name.endswith(".zst") else source


def _archive_lines(archive: gzip.GzipFile | lzma.LZMAFile) -> Iterator[bytes]:
    with archive as found:
        yield from found


def _zstd_lines(source: BinaryIO) -> Iterator[bytes]:
    rest = b""
    for data in _unzstd(source):
        *found, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in found)
    if rest:
        yield rest


def _unzstd(source: BinaryIO) -> Iterator[bytes]:
    try:
        zstandard = import_module("zstandard")
    except ImportError as error:
        raise InputError("reading .zst needs the package zstandard: pip install 'gesso[train]'") from error
    # Frame by frame: the library's own reader stops without a word after the first, and where a file was cut off.
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
        raise EOFError("it ends in the middle")
