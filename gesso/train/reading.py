"""Read and tokenize every row of the data files, in several processes if there is much data."""

import multiprocessing
import os
from array import array
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice

from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.train import files
from gesso.train.recipe import DataSettings
from gesso.train.rows import format_of, parse, tokenise

PARALLEL_BYTES = 4 * 2**20  # size of the data from which on several processes read it
TOO_LONG = "too long"  # the beginning of a reason
CHUNK = 256  # rows given to a process at a time

# Whether the row is a text, and its numbers as stored: context-only responses, number of spans, spans, tokens.
# A string is the reason for a rejection.
Read = tuple[bool, "array[int]"] | str

_reader: tuple[DataSettings, Tokenizer, int] | None = None  # inherited by forked reader processes


def read_rows(settings: DataSettings, tokenizer: Tokenizer, eos: int) -> Iterator[tuple[int, int, Read]]:
    """Yield the index of the file, the line and the result for every row, in order."""
    global _reader
    total = sum(map(files.size, settings.files))
    lines = files.lines(settings.files)
    processes = os.cpu_count() or 1
    if total < PARALLEL_BYTES or processes == 1 or "fork" not in multiprocessing.get_all_start_methods():
        for file, line, raw in lines:
            yield file, line, _read(raw, settings, tokenizer, eos)
        return
    _reader = settings, tokenizer, eos
    pending: deque[tuple[list[tuple[int, int, bytes]], Future[list[Read]]]] = deque()
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
        while True:
            while len(pending) < 4 * processes and (chunk := list(islice(lines, CHUNK))):
                pending.append((chunk, pool.submit(_read_chunk, [raw for _, _, raw in chunk])))
            if not pending:
                return
            chunk, future = pending.popleft()
            for (file, line, _), read in zip(chunk, future.result(), strict=True):
                yield file, line, read


def _read_chunk(raws: list[bytes]) -> list[Read]:
    assert _reader is not None
    return [_read(raw, *_reader) for raw in raws]


def _read(raw: bytes, settings: DataSettings, tokenizer: Tokenizer, eos: int) -> Read:
    try:
        row = parse(raw)
        tokens, spans, context_only = tokenise(row, tokenizer, eos)
        is_text = format_of(row) == "text"
        if len(tokens) > settings.max_length and not (settings.cut and is_text):
            raise InputError(f"{TOO_LONG}: {len(tokens):,} tokens, max_length is {settings.max_length:,}")
    except InputError as error:
        return str(error)
    return is_text, array("i", (context_only, len(spans), *chain(*spans), *tokens))
