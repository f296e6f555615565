"""Rows of JSON lines to examples: what comes before a response, what is learnt, and in which order.

A row is one JSON object a line, in one of three formats; `null` counts as absent:

    {"messages": [...], "tools": [...]}    a conversation; `tools` is optional; the checkpoint's chat template writes it
    {"prompt": "...", "completion": "..."} bos and prompt, then the completion and an eos, which are learnt
    {"text": "..."}                        bos, then the text and an eos, which are learnt

Other keys (id, source, …) are left alone, unless they look like a misspelt one of these. A row that cannot be used is
`Rejected` with its line and the reason. Rows are read once, by several processes where there is much of it, and their
tokens kept in a temporary file, four bytes each (about the size of the text); memory holds a few numbers a row.

The end of text is what generation stops at, so a response holds its end token once, as its last token. The fill of the
last canvas is the objective's business and not counted in `max_length`.
"""

import math
import multiprocessing
import os
import random
import tempfile
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
import numpy.typing as npt

from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.train import files
from gesso.train.rows import Span, parse, tokenise
from gesso.train.views import Viewer

WINDOW = 64  # batches that are sorted by length together, at most
LISTED = 20  # rejected rows named by the error that stops a run
MUCH = 4 * 2**20  # bytes of data from which on several processes read it
CHUNK = 256  # rows a process is given at a time

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Example:
    tokens: tuple[int, ...]
    spans: tuple[Span, ...]
    """[start, end) of each response that is learnt, its end token included. Something always comes before it."""
    source: str
    line: int
    context_only: int = 0
    """Responses of the conversation that are read but not learnt (see `_conversation`)."""


@dataclass(frozen=True)
class Rejected:
    source: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    files: tuple[str, ...]
    max_length: int
    source: str | None = None  # module:name of code that generates the examples; see gesso.train.source
    on_bad_row: Literal["skip", "stop"] = "stop"
    seed: int = 0
    cut: bool = False  # texts longer than max_length are shown a stretch at a time, not rejected
    infill: float = 0.0  # share of the texts shown with a hole that is to be filled
    repeat: tuple[int, ...] = ()  # how often an epoch passes over each file; none: once
    pad_to: int = 1  # texts of a batch are padded to a multiple of this: few shapes, for compilation
    prompt_lengths: tuple[int, ...] = ()  # of the batches, in turn: what comes before a response is cut or filled to it

    def __post_init__(self) -> None:
        def check(ok: bool, name: str, wanted: str) -> None:
            if not ok:
                raise InputError(f"data setting {name} must be {wanted}, got {getattr(self, name)!r}")

        check(isinstance(self.files, tuple) and len(self.files) > 0, "files", "a list of at least one file")
        named = all(isinstance(file, str) and (self.source or file.endswith(files.SUFFIXES)) for file in self.files)
        check(named, "files", f"names that end in {', '.join(files.SUFFIXES)}")
        check(_is_int(self.max_length) and self.max_length >= 2, "max_length", "an integer of at least 2")
        check(self.on_bad_row in ("skip", "stop"), "on_bad_row", "'skip' or 'stop'")
        check(_is_int(self.seed) and self.seed >= 0, "seed", "an integer of at least 0")
        check(isinstance(self.cut, bool), "cut", "true or false")
        check(0 <= self.infill <= 1, "infill", "a share between 0 and 1")
        counts = all(_is_int(times) and times >= 1 for times in self.repeat)
        each = not self.repeat or len(self.repeat) == len(self.files)
        check(counts and each, "repeat", "a positive integer a file")
        check(_is_int(self.pad_to) and self.pad_to >= 1, "pad_to", "an integer of at least 1")
        lengths = all(_is_int(length) and 8 <= length < self.max_length for length in self.prompt_lengths)
        check(lengths, "prompt_lengths", "integers of at least 8, below max_length")
        for name in ("cut", "infill", "repeat", "prompt_lengths") if self.source else ():
            check(not getattr(self, name), name, f"left out: {self.source} generates complete examples")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class Source(Protocol):
    """What a training run draws its batches from: see `Dataset.batches`."""

    def batches(
        self, batch_size: int, start: int, rank: int, world: int, *, stride: int, canvas_lengths: Sequence[int]
    ) -> Iterator[tuple[Example, ...]]: ...


# --- the dataset ----------------------------------------------------------------------------------------------------


class Dataset:
    """Every row is read and tokenised here, so that bad ones show before the first step and lengths are known.

    `progress` is called now and then with the bytes read so far and in all.
    """

    def __init__(
        self,
        settings: DataSettings,
        tokenizer: Tokenizer,
        eos: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.settings = settings
        self.rows = 0
        self._rejected: dict[int, Rejected] = {}  # by number of the row
        # Of the good rows: the file by its place in the settings, line, place in the store, length in tokens.
        columns = self._file, self._line, self._at, self._length = tuple(array("q") for _ in range(4))
        viewing = settings.cut or settings.infill > 0
        self._viewer = Viewer.of(tokenizer, eos, settings.max_length, settings.infill) if viewing else None
        # What an epoch passes over: good rows by number, and where in a text to look (-1: the row is taken whole).
        numbers, places, lengths = array("q"), array("q"), array("q")
        total = sum(files.size(name) for name in settings.files)
        with _store() as store:
            for file, line, done, read in _tokenised(settings, total, tokenizer, eos):
                if isinstance(read, str):
                    self._rejected[self.rows] = Rejected(settings.files[file], line, read)
                else:
                    is_text, record = read
                    length = len(record) - 2 - 2 * record[1]
                    for column, value in zip(columns, (file, line, store.tell() // 4, length), strict=True):
                        column.append(value)
                    store.write(record)
                    looks = self._viewer.pieces(length) if self._viewer and is_text else (-1,)
                    for place in [*looks] * (settings.repeat[file] if settings.repeat else 1):
                        numbers.append(len(self._file) - 1)
                        places.append(place)
                        lengths.append(-(-min(length, settings.max_length) // settings.pad_to) * settings.pad_to)
                self.rows += 1
                if progress and self.rows % 1000 == 0:
                    progress(done, total)
            store.flush()
            self._numbers, self._places, self._lengths = (
                np.array(column, dtype=np.int64) for column in (numbers, places, lengths)
            )
            # A map outlives its file, and can be read from threads and forks at once.
            self._store = np.memmap(store, dtype=np.int32, mode="r") if lengths else np.empty(0, np.int32)
        if progress:
            progress(total, total)
        if self._rejected and settings.on_bad_row == "stop":
            raise InputError(_complaint(self.rejected, self.rows))

    @property
    def rejected(self) -> list[Rejected]:
        return list(self._rejected.values())

    @property
    def good(self) -> int:
        return len(self._file)

    def read(self) -> Iterator[Example | Rejected]:
        """Every row, good or bad, in the order of the files."""
        good = count()
        for row in range(self.rows):
            yield self._rejected[row] if row in self._rejected else self._load(next(good))

    def batches(
        self,
        batch_size: int,
        start: int = 0,
        rank: int = 0,
        world: int = 1,
        *,
        stride: int = 1,
        canvas_lengths: Sequence[int] = (256,),
    ) -> Iterator[tuple[Example, ...]]:
        """Batches without end, from number `start` on: exactly those an uninterrupted iteration gives from there.

        Of each batch of `batch_size`, rank r of `world` gets the r-th of equal slices; see `order` for what is in it.
        Only every `stride`-th is given. Where a view of a text is taken, a canvas of it is learnt; the batches have the
        `canvas_lengths` in turn.
        """
        if not self.good:
            first = f"; the first: {self.rejected[0]}" if self._rejected else ""
            raise InputError(f"no row to train on in {', '.join(self.settings.files)}: {self.rows} rows{first}")
        if batch_size < 1 or world < 1 or batch_size % world or not 0 <= rank < world or start < 0:
            raise InputError(
                f"cannot cut batches: batch_size {batch_size} must be a multiple of world {world}, "
                f"rank {rank} one of 0 to {world - 1}, start {start} not negative"
            )
        prompts = self._prompts(canvas_lengths)
        share = slice(rank * batch_size // world, (rank + 1) * batch_size // world)
        batches = islice(order(self._lengths, batch_size, self.settings.seed, start), 0, None, stride)
        numbered = zip(count(start, stride), batches, strict=False)
        return (
            tuple(
                self._example(entry, number * batch_size + place, *prompts[number % len(prompts)])
                for place, entry in enumerate(batch[share], start=share.start)
            )
            for number, batch in numbered
        )

    def _prompts(self, canvas_lengths: Sequence[int]) -> list[tuple[int, int]]:
        """The most tokens before a canvas, and its length, for the batches in turn."""
        longest, given = self.settings.max_length, self.settings.prompt_lengths
        turns = math.lcm(len(canvas_lengths), len(given) or 1)
        canvases = [canvas_lengths[turn % len(canvas_lengths)] for turn in range(turns)]
        found = [(given[t % len(given)] if given else longest - c, c) for t, c in enumerate(canvases)]
        for prompt, canvas in found if given or self._viewer else ():
            if prompt < 8 or canvas < 2 or prompt + canvas > longest:
                raise InputError(
                    f"a canvas of {canvas} after a prompt of {prompt} tokens does not go into max_length = {longest}: "
                    "raise data.max_length, or lower data.prompt_lengths or objective.canvas_lengths"
                )
        return found

    def _example(self, entry: int, number: int, prompt: int, canvas_length: int) -> Example:
        """What an entry shows as example `number` of the run."""
        row, place = int(self._numbers[entry]), int(self._places[entry])
        rng = random.Random((self.settings.seed << 48) + number)
        if place < 0 or self._viewer is None:
            example = self._load(row)
        else:
            text = self._at[row] + 4  # after its two counts and its one span
            stored = self._store[text + 1 : text + self._length[row]]
            tokens, span = self._viewer.look(stored, place, prompt, canvas_length, rng)
            example = Example(tuple(tokens), (span,), self.settings.files[self._file[row]], self._line[row])
        return self._filled(example, prompt, canvas_length, rng) if self.settings.prompt_lengths else example

    def _filled(self, example: Example, prompt: int, canvas_length: int, rng: random.Random) -> Example:
        """One canvas of it after exactly `prompt` tokens: too many lose the first, and others fill up too few.

        A batch of them needs no padding and no mask, and the encoder learns from the others, too.
        """
        canvases = [at for start, end in example.spans for at in range(start, end, canvas_length)]
        at = canvases[int(rng.random() * len(canvases))]
        end = next(end for start, end in example.spans if start <= at < end)
        front: list[int] = []
        while (room := prompt - at - len(front)) > 0:
            front = [*self._ending(int(rng.random() * len(self._numbers)), room), *front]
        before = [*front, *example.tokens[max(0, at - prompt) : at]]
        response = example.tokens[at : min(at + canvas_length, end)]
        return replace(example, tokens=(*before, *response), spans=((prompt, prompt + len(response)),))

    def _ending(self, entry: int, most: int) -> list[int]:
        """The last tokens of a row, or of the stretch of a text that an entry stands for."""
        row, place = int(self._numbers[entry]), int(self._places[entry])
        first = self._at[row] + 2 + 2 * int(self._store[self._at[row] + 1])
        length = self._length[row] if place < 0 else min(self._length[row], place + self.settings.max_length)
        found: list[int] = self._store[first + max(0, length - most) : first + length].tolist()
        return found

    def _load(self, row: int) -> Example:
        at = self._at[row]
        context_only, spans = self._store[at : at + 2].tolist()
        bounds, tokens = at + 2, at + 2 + 2 * spans
        return Example(
            tokens=tuple(self._store[tokens : tokens + self._length[row]].tolist()),
            spans=tuple((start, end) for start, end in self._store[bounds:tokens].reshape(-1, 2).tolist()),
            source=self.settings.files[self._file[row]],
            line=self._line[row],
            context_only=context_only,
        )


def _complaint(rejected: Sequence[Rejected], rows: int) -> str:
    shown = "\n".join(f"  {row}" for row in rejected[:LISTED])
    more = f"\n  … and {len(rejected) - LISTED:,} more" if len(rejected) > LISTED else ""
    advice = 'Mend them, or set on_bad_row = "skip" to train without them.'
    return f"{len(rejected):,} of {rows:,} rows cannot be used:\n{shown}{more}\n{advice}"


def order(lengths: Ids, batch_size: int, seed: int, start: int = 0) -> Iterator[Ids]:
    """The rows of batch `start`, `start + 1`, …: a pure function of the arguments, with no need to visit those before.

    An epoch is a shuffle of all rows, and epochs follow each other without a gap. Its whole batches are taken in
    windows of `WINDOW`, or of a quarter of the epoch if that is less: sorting all rows would put the same ones together
    in every epoch. A window is sorted by length, cut into batches, and the batches shuffled, so that rows of similar
    length share a batch and lengths still come in no order. Where an epoch does not end with a batch, that batch takes
    its last rows and the first of the next epoch, whatever their lengths: no row is left out, none repeated within an
    epoch.
    """
    rows = len(lengths)
    width = max(1, min(WINDOW, rows // (4 * batch_size)))

    def shuffled(count: int, epoch: int, window: int) -> Ids:
        # Raw bits, whose sequence is fixed; numpy may change what `permutation` makes of them between releases.
        return np.argsort(np.random.PCG64([seed, epoch, window]).random_raw(count), kind="stable")

    batch = start
    while True:
        epoch, skipped = divmod(batch * batch_size, rows)
        begin, end = epoch * rows, (epoch + 1) * rows
        last = end // batch_size  # the epoch's whole batches are those from ceil(begin / batch_size) up to this one
        if batch == last:
            stop = (batch + 1) * batch_size
            epochs = range(epoch, -(-stop // rows))
            yield np.concatenate([shuffled(rows, e, 0) for e in epochs])[skipped : skipped + batch_size]
            batch += 1
            continue
        rows_of_epoch = shuffled(rows, epoch, 0)
        for first in range(-(-begin // batch_size), last, width):
            past = min(first + width, last)
            if past <= batch:
                continue
            window = rows_of_epoch[first * batch_size - begin : past * batch_size - begin]
            by_length = window[np.argsort(lengths[window], kind="stable")].reshape(-1, batch_size)
            yield from by_length[shuffled(past - first, epoch, 1 + first)][batch - first :]
            batch = past


# --- reading --------------------------------------------------------------------------------------------------------

# Whether it is a text, and its numbers as stored: responses not learnt, count of spans, spans, tokens; or what is wrong
Read = tuple[bool, "array[int]"] | str
Chunk = list[tuple[int, int, bytes, int]]

_reader: tuple[DataSettings, Tokenizer, int] | None = None  # of a process that reads for another


def _tokenised(
    settings: DataSettings, total: int, tokenizer: Tokenizer, eos: int
) -> Iterator[tuple[int, int, int, Read]]:
    """File, line, bytes read so far, and what became of the row, in order."""
    global _reader
    lines = files.lines(settings.files)
    processes = os.cpu_count() or 1
    if total < MUCH or processes == 1 or "fork" not in multiprocessing.get_all_start_methods():
        for file, line, raw, done in lines:
            yield file, line, done, _read(raw, settings, tokenizer, eos)
        return
    _reader = settings, tokenizer, eos
    waiting: deque[tuple[Chunk, Future[list[Read]]]] = deque()
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
        while True:
            while len(waiting) < 4 * processes and (chunk := list(islice(lines, CHUNK))):
                waiting.append((chunk, pool.submit(_read_chunk, [raw for _, _, raw, _ in chunk])))
            if not waiting:
                return
            chunk, future = waiting.popleft()
            for (file, line, _, done), read in zip(chunk, future.result(), strict=True):
                yield file, line, done, read


def _read_chunk(raws: list[bytes]) -> list[Read]:
    assert _reader is not None
    return [_read(raw, *_reader) for raw in raws]


def _read(raw: bytes, settings: DataSettings, tokenizer: Tokenizer, eos: int) -> Read:
    try:
        row = parse(raw)
        tokens, spans, context_only = tokenise(row, tokenizer, eos)
        if len(tokens) > settings.max_length and not (settings.cut and "text" in row):
            raise InputError(f"too long: {len(tokens):,} tokens, max_length is {settings.max_length:,}")
    except InputError as error:
        return str(error)
    return "text" in row, array("i", (context_only, len(spans), *chain(*spans), *tokens))


@contextmanager
def _store() -> Iterator[BinaryIO]:
    try:
        with tempfile.TemporaryFile(prefix="gesso-tokens-") as file:
            yield file
    except OSError as error:
        raise InputError(
            f"the tokens cannot be kept in {tempfile.gettempdir()} ({error}): set TMPDIR to a place with room"
        ) from error
