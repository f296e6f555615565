"""Training data: rows of JSON as examples, and batches of them in a fixed order.

A row is one JSON object, in one of these formats or in one of `train/formats.py`; `null` counts as absent:

    {"messages": [...], "tools": [...]}    a conversation, rendered by the chat template; `tools` is optional
    {"prompt": "...", "completion": "..."} bos and prompt as context, then the completion and an eos as targets
    {"text": "..."}                        bos as context, then the text and an eos as targets

The contents of messages may have images, which are prompt: see `train/image_rows.py`.

Other keys (id, source, …) are ignored, unless they look like a misspelling of these. A row that cannot be used is
`Rejected` with its line and the reason. Rows are read once. Their tokens are kept in a temporary file, four bytes each
(about the size of the text); memory holds a few numbers per row.

Generation stops at the end token, so a response contains its end token once, as its last token. The fill of the last
canvas is added by `train/batch.py` and does not count towards `max_length`.
"""

import math
import random
from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.images.image import Image
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
WHOLE = -1  # stored in place of the start of an entry that is a whole row
LEAST_PROMPT = 8  # tokens
LEAST_CANVAS = 2


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


@dataclass(frozen=True)
class Entry:
    """What an epoch shows once: a whole row, or a section of a long text."""

    row: int  # number among the good rows
    start: int | None  # of the section, in tokens; None: the whole row


class Entries:
    """The entries of an epoch, three numbers each."""

    def __init__(self) -> None:
        self._rows = array("q")
        self._starts = array("q")
        self._padded_lengths = array("q")

    def append(self, entry: Entry, padded_length: int) -> None:
        self._rows.append(entry.row)
        self._starts.append(WHOLE if entry.start is None else entry.start)
        self._padded_lengths.append(padded_length)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Entry:
        start = self._starts[index]
        return Entry(row=self._rows[index], start=None if start == WHOLE else start)

    @property
    def padded_lengths(self) -> npt.NDArray[np.int64]:
        return np.array(self._padded_lengths)

    def remove_rows(self, rows: Collection[int]) -> None:
        stays = ~np.isin(self._rows, list(rows))
        self._rows = array("q", np.array(self._rows)[stays])
        self._starts = array("q", np.array(self._starts)[stays])
        self._padded_lengths = array("q", np.array(self._padded_lengths)[stays])


@dataclass(frozen=True)
class BatchShape:
    prompt: int  # most tokens before the canvas
    canvas: int  # tokens


class Dataset:
    """All rows of the data files, tokenized at construction: bad rows are reported before the first step.

    Good rows are numbered in the order of the files. An epoch passes over entries, which are good rows or sections of
    them.
    """

    def __init__(
        self, settings: DataSettings, tokenizer: Tokenizer, eos: int, images: RowImageReader | None = None
    ) -> None:
        self.settings = settings
        self.reader = images
        has_views = settings.cut or settings.infill > 0
        self._viewer = Viewer.create(tokenizer, eos, settings.max_length, settings.infill) if has_views else None
        self.rows = 0  # good and bad ones
        self._rejected: dict[int, Rejected] = {}  # by number among all rows
        self._store = TokenStore()  # of the good rows
        self._files = array("q")  # of each good row: the index of its file, and its line
        self._lines = array("q")
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
        self._store.append(row)
        self._files.append(file)
        self._lines.append(line)

        length = len(row.tokens)
        starts: Sequence[int | None] = (None,)
        if self._viewer is not None and row.is_text:
            starts = self._viewer.starts(length)
        padded_length = math.ceil(min(length, settings.max_length) / settings.pad_to) * settings.pad_to
        for _ in range(settings.repeat[file] if settings.repeat else 1):
            for start in starts:
                self._entries.append(Entry(row=number, start=start), padded_length)

    @property
    def images(self) -> ImageStore:
        return self._store.images

    @property
    def rejected(self) -> list[Rejected]:
        return list(self._rejected.values())

    @property
    def good(self) -> int:
        return len(self._store)

    def take_out(self, rows: Collection[int]) -> list[Example]:
        """Return these good rows, numbered in the order of the files, and leave them out of the batches."""
        self._entries.remove_rows(rows)
        return [self._load(row) for row in rows]

    @property
    def entries(self) -> int:
        """The number of entries of an epoch."""
        return len(self._entries)

    @property
    def lengths(self) -> Sequence[int]:
        """The lengths of the good rows in tokens."""
        return self._store.lengths

    def read(self) -> Iterator[Example | Rejected]:
        """Yield every row, good or bad, in the order of the files."""
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
        """Return endless batches from number `start` on, the same as an uninterrupted iteration gives from there.

        Rank r of `world` gets the r-th of equal slices of each batch; `order` gives its content. Only every `stride`-th
        batch is returned. A view of a text has one canvas to train on; the batches take the `canvas_lengths` in turn.
        """
        if not self.good:
            first = f"; the first: {self.rejected[0]}" if self._rejected else ""
            raise InputError(f"no row to train on in {', '.join(self.settings.files)}: {self.rows} rows{first}")
        if batch_size < 1 or world < 1 or batch_size % world or not 0 <= rank < world or start < 0:
            raise InputError(
                f"cannot cut batches: batch_size {batch_size} must be a multiple of world {world}, "
                f"rank {rank} one of 0 to {world - 1}, start {start} not negative"
            )
        places = range(rank * batch_size // world, (rank + 1) * batch_size // world)
        return self._batches(batch_size, start, stride, places, self._shapes(canvas_lengths))

    def _batches(
        self, batch_size: int, start: int, stride: int, places: range, shapes: Sequence[BatchShape]
    ) -> Iterator[tuple[Example, ...]]:
        """Yield the examples at these places of every `stride`-th batch."""
        ordered = order(self._entries.padded_lengths, batch_size, self.settings.seed, start)
        for number, batch in zip(count(start, stride), islice(ordered, 0, None, stride), strict=False):
            shape = shapes[number % len(shapes)]
            yield tuple(self._example(batch[place], number * batch_size + place, shape) for place in places)

    def _shapes(self, canvas_lengths: Sequence[int]) -> list[BatchShape]:
        """Return the shapes that the batches take in turn. Both lists of lengths start again when they end."""
        longest = self.settings.max_length
        prompt_lengths = self.settings.prompt_lengths
        shapes = []
        for turn in range(math.lcm(len(canvas_lengths), len(prompt_lengths) or 1)):
            canvas = canvas_lengths[turn % len(canvas_lengths)]
            prompt = prompt_lengths[turn % len(prompt_lengths)] if prompt_lengths else longest - canvas
            has_room = prompt >= LEAST_PROMPT and canvas >= LEAST_CANVAS and prompt + canvas <= longest
            if (prompt_lengths or self._viewer) and not has_room:
                raise InputError(
                    f"a canvas of {canvas} after a prompt of {prompt} tokens does not fit into max_length = {longest}; "
                    "raise data.max_length, or lower data.prompt_lengths or objective.canvas_lengths"
                )
            shapes.append(BatchShape(prompt=prompt, canvas=canvas))
        return shapes

    def _example(self, index: int, number: int, shape: BatchShape) -> Example:
        """Return the example made from an entry. Its number in the run seeds its random choices."""
        entry = self._entries[index]
        rng = random.Random((self.settings.seed << 48) + number)
        example = self._load(entry.row) if entry.start is None else self._view(entry.row, entry.start, shape, rng)
        return self._with_prompt(example, shape, rng) if self.settings.prompt_lengths else example

    def _view(self, row: int, start: int, shape: BatchShape, rng: random.Random) -> Example:
        """Return a random view of a text near a section's start."""
        assert self._viewer is not None, "only views have sections"
        text = self._store.tokens(row)[1:]  # without bos
        tokens, span = self._viewer.view(text, start, shape.prompt, shape.canvas, rng)
        return Example(
            tokens=tuple(tokens), spans=(span,), source=self.settings.files[self._files[row]], line=self._lines[row]
        )

    def _with_prompt(self, example: Example, shape: BatchShape, rng: random.Random) -> Example:
        """Return one canvas of the example after exactly `shape.prompt` tokens.

        A longer prompt loses its first tokens; a shorter one is filled with the ends of other entries. A batch of such
        examples needs no padding and no mask, and the encoder is trained on the filling too.
        """
        canvases = [(start, end) for first, end in example.spans for start in range(first, end, shape.canvas)]
        start, end = canvases[int(rng.random() * len(canvases))]
        response = example.tokens[start : min(start + shape.canvas, end)]
        filling: list[int] = []
        while start + len(filling) < shape.prompt:
            other = self._entries[int(rng.random() * len(self._entries))]
            filling = [*self._ending(other, shape.prompt - start - len(filling)), *filling]
        prompt = (*filling, *example.tokens[max(0, start - shape.prompt) : start])
        span = (shape.prompt, shape.prompt + len(response))
        return replace(example, tokens=(*prompt, *response), spans=(span,))

    def _ending(self, entry: Entry, most: int) -> list[int]:
        """Return the last tokens of an entry."""
        tokens = self._store.tokens(entry.row)
        end = len(tokens) if entry.start is None else min(len(tokens), entry.start + self.settings.max_length)
        ending: list[int] = tokens[max(0, end - most) : end].tolist()
        return ending

    def _load(self, row: int) -> Example:
        stored = self._store.load(row)
        return Example(
            tokens=stored.tokens,
            spans=stored.spans,
            source=self.settings.files[self._files[row]],
            line=self._lines[row],
            context_only=stored.context_only,
            images=stored.images,
            starts=stored.image_starts,
        )


def _rejection_message(rejected: Sequence[Rejected], rows: int) -> str:
    shown = "\n".join(f"  {row}" for row in rejected[:LISTED])
    more = f"\n  … and {len(rejected) - LISTED:,} more" if len(rejected) > LISTED else ""
    advice = 'Correct them, or set on_bad_row = "skip" to train without them.'
    return f"{len(rejected):,} of {rows:,} rows cannot be used:\n{shown}{more}\n{advice}"
