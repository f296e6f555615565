"""Read and tokenize every row of the data files, in several processes if there is much data."""

import multiprocessing
import os
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.images.image import Image
from gesso.train import files
from gesso.train.image_rows import RowImageReader, place_images, read_row_images
from gesso.train.recipe import DataSettings
from gesso.train.rows import Span, format_of, parse, tokenise, with_messages

PARALLEL_BYTES = 4 * 2**20  # size of the data from which on several processes read it
TOO_LONG = "too long"  # the beginning of a reason
CHUNK = 256  # rows given to a process at a time


@dataclass(frozen=True)
class TrainingRow:
    """A row that can be trained on."""

    is_text: bool
    tokens: "array[int]"
    spans: tuple[Span, ...]
    context_only: int  # responses
    images: tuple[Image, ...]
    starts: tuple[int, ...]  # of the soft tokens of each image


Read = TrainingRow | str  # a string is the reason for a rejection

# Inherited by forked reader processes.
_reader: tuple[DataSettings, Tokenizer, int, RowImageReader | None] | None = None


def read_rows(
    settings: DataSettings, tokenizer: Tokenizer, eos: int, images: RowImageReader | None = None
) -> Iterator[tuple[int, int, Read]]:
    """Yield the index of the file, the line and the result for every row, in order."""
    global _reader
    total = sum(map(files.size, settings.files))
    lines = files.lines(settings.files)
    processes = os.cpu_count() or 1
    if total < PARALLEL_BYTES or processes == 1 or "fork" not in multiprocessing.get_all_start_methods():
        for file, line, raw in lines:
            yield file, line, _read(raw, settings.files[file], settings, tokenizer, eos, images)
        return
    _reader = settings, tokenizer, eos, images
    pending: deque[tuple[list[tuple[int, int, bytes]], Future[list[Read]]]] = deque()
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
        while True:
            while len(pending) < 4 * processes and (chunk := list(islice(lines, CHUNK))):
                pending.append(
                    (chunk, pool.submit(_read_chunk, [(settings.files[file], raw) for file, _, raw in chunk]))
                )
            if not pending:
                return
            chunk, future = pending.popleft()
            for (file, line, _), read in zip(chunk, future.result(), strict=True):
                yield file, line, read


def first_rows(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the first usable row of each data file, with messages if it is one of a conversation."""
    for name in names:
        for _, _, raw in files.lines([name]):
            try:
                yield with_messages(parse(raw))
                break
            except InputError:  # a bad row
                continue


def _read_chunk(raws: list[tuple[str, bytes]]) -> list[Read]:
    assert _reader is not None
    return [_read(raw, file, *_reader) for file, raw in raws]


def _read(
    raw: bytes, file: str, settings: DataSettings, tokenizer: Tokenizer, eos: int, reader: RowImageReader | None
) -> Read:
    try:
        row = parse(raw)
        is_text = format_of(row) == "text"
        row, images = read_row_images(with_messages(row), reader, file)
        tokens, spans, context_only = tokenise(row, tokenizer, eos)
        starts: list[int] = []
        if images and reader is not None:
            if settings.prompt_lengths:
                raise InputError("data.prompt_lengths cuts prompts, and an image cannot be cut; remove one")
            tokens, spans, starts = place_images(tokens, spans, images, reader.ids)
        if len(tokens) > settings.max_length and not (settings.cut and is_text):
            raise InputError(f"{TOO_LONG}: {len(tokens):,} tokens, max_length is {settings.max_length:,}")
    except InputError as error:
        return str(error)
    return TrainingRow(
        is_text=is_text,
        tokens=array("i", tokens),
        spans=tuple(spans),
        context_only=context_only,
        images=images,
        starts=tuple(starts),
    )
