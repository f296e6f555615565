"""Training data: rows of JSON in files, read once and returned as batches of examples in an order that the seed fixes.

1. `Dataset` reads and tokenizes every row when it is made (`reading.py`). A row that cannot be used is `Rejected`, with
   its line and the reason. Tokens of good rows are kept in a temporary file, four bytes each (`token_store.py`).
2. An epoch shows every entry once. An entry is a row, or one section of a text that is too long for one example
   (`entries.py`).
3. `Dataset.batches` takes the entries in the order of `order.py` and makes an `Example` of each: tokens, and the spans
   of them to train on.

A row is one JSON object, in one of these formats or in one of `train/formats.py`; `null` counts as absent:

    {"messages": [...], "tools": [...]}    a conversation, rendered by the chat template; `tools` is optional
    {"prompt": "...", "completion": "..."} bos and prompt as context, then the completion and an eos as targets
    {"text": "..."}                        bos as context, then the text and an eos as targets

The contents of messages may have images, which are prompt: see `train/image_rows.py`. Other keys (id, source, …) are
ignored, unless they look like a misspelling of these.

Generation stops at the end token, so a response contains its end token once, as its last token. The fill of the last
canvas is added by `train/batch.py` and does not count towards `max_length`.
"""

import math
import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Protocol

from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.images.image import Image
from gesso.train.entries import BatchShape, Entries, Entry, batch_shapes, with_prompt_of_fixed_length
from gesso.train.image_rows import RowImageReader
from gesso.train.image_store import ImageStore
from gesso.train.order import order
from gesso.train.reading import TrainingRow, read_rows
from gesso.train.recipe import DataSettings
from gesso.train.rows import Span
from gesso.train.token_store import TokenStore
from gesso.train.trajectories import Trajectory
from gesso.train.views import Viewer

LISTED = 20  # rejected rows named by the error that stops a run


@dataclass(frozen=True)
class Example:
    tokens: tuple[int, ...]
    spans: tuple[Span, ...]
    """[start, end) of each response to train on, end token included. At least one token comes before it."""
    source: str
    line: int
    context_only: int = 0
    """The number of responses that serve as context and not as targets (see `rows._conversation`)."""
    trajectory: Trajectory | None = None
    """The recorded canvases of the one response, to train on in place of noise."""
    images: tuple[Image, ...] = ()
    starts: tuple[int, ...] = ()
    """Where the soft tokens of each image start. They come before a response, never in one."""


@dataclass(frozen=True)
class Rejected:
    source: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.reason}"


class Source(Protocol):
    """A source of batches for training; see `Dataset.batches`."""

    def batches(
        self, batch_size: int, start: int, rank: int, world: int, *, stride: int, canvas_lengths: Sequence[int]
    ) -> Iterator[tuple[Example, ...]]: ...


class Dataset:
    """All rows of the data files. Good rows are numbered in the order of the files."""

    def __init__(
        self, settings: DataSettings, tokenizer: Tokenizer, eos: int, images: RowImageReader | None = None
    ) -> None:
        self.settings = settings
        self.reader = images
        self.rows = 0  # good and bad ones
        self._rejected: dict[int, Rejected] = {}  # by number among all rows
        self._viewer: Viewer | None = None  # of sections of long texts
        if settings.cut or settings.infill > 0:
            self._viewer = Viewer.create(tokenizer, eos, settings.max_length, settings.infill)
        self._store = TokenStore()  # of the good rows
        self._entries = Entries()

        with closing(self._store):
            for file, line, row in read_rows(settings, tokenizer, eos, images):
                if isinstance(row, str):  # the reason why it cannot be used
                    self._rejected[self.rows] = Rejected(settings.files[file], line, row)
                else:
                    self._add(row, file, line)
                self.rows += 1
        if self._rejected and settings.on_bad_row == "stop":
            raise InputError(_rejection_message(self.rejected, self.rows))

    def _add(self, row: TrainingRow, file: int, line: int) -> None:
        """Store a good row, and add its entries to the epoch."""
        settings = self.settings
        number = len(self._store)
        self._store.append(row, file, line)

        length = len(row.tokens)
        padded_length = math.ceil(min(length, settings.max_length) / settings.pad_to) * settings.pad_to
        section_starts: Sequence[int | None] = (None,)
        if self._viewer is not None and row.is_text:
            section_starts = self._viewer.starts(length)
        for _ in range(settings.repeat[file] if settings.repeat else 1):
            for start in section_starts:
                self._entries.append(Entry(row=number, start=start), padded_length)

    # --- the rows -----------------------------------------------------------------------------------------------

    @property
    def good(self) -> int:
        """The number of good rows."""
        return len(self._store)

    @property
    def rejected(self) -> list[Rejected]:
        return list(self._rejected.values())

    @property
    def lengths(self) -> Sequence[int]:
        """The lengths of the good rows in tokens."""
        return self._store.lengths

    @property
    def images(self) -> ImageStore:
        return self._store.images

    @property
    def entries(self) -> int:
        """The number of entries of an epoch."""
        return len(self._entries)

    def read(self) -> Iterator[Example | Rejected]:
        """Yield every row, good or bad, in the order of the files."""
        good = count()
        for row in range(self.rows):
            yield self._rejected[row] if row in self._rejected else self._row_example(next(good))

    def take_out(self, rows: Collection[int]) -> list[Example]:
        """Return these good rows, and leave them out of the batches."""
        self._entries.remove_rows(rows)
        return [self._row_example(row) for row in rows]

    # --- batches ------------------------------------------------------------------------------------------------

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
        """Return endless batches from number `start` on, the same as an uninterrupted iteration gives from there.

        Rank r of `world` gets the r-th of equal slices of each batch; `order` gives its content. Only every `stride`-th
        batch is returned. Examples with one canvas take the `canvas_lengths` in turn, batch by batch.
        """
        if not self.good:
            first = f"; the first: {self.rejected[0]}" if self._rejected else ""
            raise InputError(f"no row to train on in {', '.join(self.settings.files)}: {self.rows} rows{first}")
        if batch_size < 1 or world < 1 or batch_size % world or not 0 <= rank < world or start < 0:
            raise InputError(
                f"cannot cut batches: batch_size {batch_size} must be a multiple of world {world}, "
                f"rank {rank} one of 0 to {world - 1}, start {start} not negative"
            )
        prompt_lengths = self.settings.prompt_lengths
        has_one_canvas = bool(prompt_lengths) or self._viewer is not None
        shapes = batch_shapes(self.settings.max_length, prompt_lengths, canvas_lengths, must_fit=has_one_canvas)
        places = range(rank * batch_size // world, (rank + 1) * batch_size // world)
        return self._batches(batch_size, start, stride, places, shapes)

    def _batches(
        self, batch_size: int, start: int, stride: int, places: range, shapes: Sequence[BatchShape]
    ) -> Iterator[tuple[Example, ...]]:
        """Yield the examples at these places of every `stride`-th batch."""
        ordered = order(self._entries.padded_lengths, batch_size, self.settings.seed, start)
        for number, batch in zip(count(start, stride), islice(ordered, 0, None, stride), strict=False):
            shape = shapes[number % len(shapes)]
            yield tuple(self._example(batch[place], number * batch_size + place, shape) for place in places)

    def _example(self, index: int, number: int, shape: BatchShape) -> Example:
        """Return the example made from an entry. Its number in the run seeds its random choices."""
        entry = self._entries[index]
        rng = random.Random((self.settings.seed << 48) + number)
        if entry.start is None:
            example = self._row_example(entry.row)
        else:
            example = self._section_example(entry.row, entry.start, shape, rng)
        if self.settings.prompt_lengths:
            example = self._with_prompt_of_fixed_length(example, shape, rng)
        return example

    def _row_example(self, row: int) -> Example:
        """Return a whole row."""
        stored = self._store.load(row)
        return Example(
            tokens=stored.tokens,
            spans=stored.spans,
            source=self.settings.files[stored.file],
            line=stored.line,
            context_only=stored.context_only,
            images=stored.images,
            starts=stored.image_starts,
        )

    def _section_example(self, row: int, start: int, shape: BatchShape, rng: random.Random) -> Example:
        """Return a random part of a long text near a section's start: text to continue, or a hole to fill."""
        assert self._viewer is not None, "only views have sections"
        text = self._store.tokens(row)[1:]  # without bos
        tokens, span = self._viewer.view(text, start, shape.prompt, shape.canvas, rng)
        file, line = self._store.origin(row)
        return Example(tokens=tuple(tokens), spans=(span,), source=self.settings.files[file], line=line)

    def _with_prompt_of_fixed_length(self, example: Example, shape: BatchShape, rng: random.Random) -> Example:
        def other_ending(most: int) -> list[int]:
            return self._ending(int(rng.random() * len(self._entries)), most)

        tokens, span = with_prompt_of_fixed_length(example.tokens, example.spans, shape, rng, other_ending)
        return replace(example, tokens=tokens, spans=(span,))

    def _ending(self, index: int, most: int) -> list[int]:
        """Return the last tokens of an entry."""
        entry = self._entries[index]
        tokens = self._store.tokens(entry.row)
        end = len(tokens) if entry.start is None else min(len(tokens), entry.start + self.settings.max_length)
        ending: list[int] = tokens[max(0, end - most) : end].tolist()
        return ending


def _rejection_message(rejected: Sequence[Rejected], rows: int) -> str:
    shown = "\n".join(f"  {row}" for row in rejected[:LISTED])
    more = f"\n  … and {len(rejected) - LISTED:,} more" if len(rejected) > LISTED else ""
    advice = 'Correct them, or set on_bad_row = "skip" to train without them.'
    return f"{len(rejected):,} of {rows:,} rows cannot be used:\n{shown}{more}\n{advice}"
