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
WHOLE = -1  # in place of a start: the entry shows its whole row


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
    """All rows of the data files, tokenized at construction: bad rows are reported before the first step.

    An epoch passes over entries. An entry is a good row, or one section of a long text.
    """

    def __init__(
        self, settings: DataSettings, tokenizer: Tokenizer, eos: int, images: RowImageReader | None = None
    ) -> None:
        self.settings = settings
        self.reader = images
        self.rows = 0
        self._rejected: dict[int, Rejected] = {}  # by number of the row
        self._files = array("q")  # of each good row: the index of its file, and its line
        self._lines = array("q")
        viewing = settings.cut or settings.infill > 0
        self._viewer = Viewer.create(tokenizer, eos, settings.max_length, settings.infill) if viewing else None
        entries = array("q")
        self._store = TokenStore()
        with closing(self._store):
            for file, line, row in read_rows(settings, tokenizer, eos, images):
                if isinstance(row, str):
                    self._rejected[self.rows] = Rejected(settings.files[file], line, row)
                else:
                    entries.extend(self._entries_of(row, file))
                    self._store.append(row)
                    self._files.append(file)
                    self._lines.append(line)
                self.rows += 1
        # Of each entry: number of the good row, start of the section, padded length.
        self._entry_rows, self._entry_starts, self._entry_lengths = np.array(entries).reshape(-1, 3).T
        if self._rejected and settings.on_bad_row == "stop":
            raise InputError(_rejection_message(self.rejected, self.rows))

    def _entries_of(self, row: TrainingRow, file: int) -> Iterator[int]:
        """Yield three values for each entry of a row that is about to be stored."""
        settings = self.settings
        length = len(row.tokens)
        starts = self._viewer.starts(length) if self._viewer is not None and row.is_text else (WHOLE,)
        padded = math.ceil(min(length, settings.max_length) / settings.pad_to) * settings.pad_to
        for _ in range(settings.repeat[file] if settings.repeat else 1):
            for start in starts:
                yield from (len(self._store), start, padded)

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
        stays = ~np.isin(self._entry_rows, list(rows))
        self._entry_rows = self._entry_rows[stays]
        self._entry_starts = self._entry_starts[stays]
        self._entry_lengths = self._entry_lengths[stays]
        return [self._load(row) for row in rows]

    @property
    def entries(self) -> int:
        """The number of entries of an epoch."""
        return len(self._entry_rows)

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
        share = slice(rank * batch_size // world, (rank + 1) * batch_size // world)
        return self._batches(batch_size, start, stride, share, self._shapes(canvas_lengths))

    def _batches(
        self, batch_size: int, start: int, stride: int, share: slice, shapes: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[Example, ...]]:
        ordered = order(self._entry_lengths, batch_size, self.settings.seed, start)
        for number, batch in zip(count(start, stride), islice(ordered, 0, None, stride), strict=False):
            prompt, canvas_length = shapes[number % len(shapes)]
            first = number * batch_size + share.start
            yield tuple(
                self._example(entry, first + place, prompt, canvas_length) for place, entry in enumerate(batch[share])
            )

    def _shapes(self, canvas_lengths: Sequence[int]) -> list[tuple[int, int]]:
        """Return the most tokens before a canvas and the canvas length, for the batches in turn."""
        longest, given = self.settings.max_length, self.settings.prompt_lengths
        shapes = []
        for turn in range(math.lcm(len(canvas_lengths), len(given) or 1)):
            canvas = canvas_lengths[turn % len(canvas_lengths)]
            prompt = given[turn % len(given)] if given else longest - canvas
            if (given or self._viewer) and (prompt < 8 or canvas < 2 or prompt + canvas > longest):
                raise InputError(
                    f"a canvas of {canvas} after a prompt of {prompt} tokens does not fit into max_length = {longest}; "
                    "raise data.max_length, or lower data.prompt_lengths or objective.canvas_lengths"
                )
            shapes.append((prompt, canvas))
        return shapes

    def _example(self, entry: int, number: int, prompt: int, canvas_length: int) -> Example:
        """Return the example made from an entry. Its index in the run, `number`, seeds its random choices."""
        row = int(self._entry_rows[entry])
        start = int(self._entry_starts[entry])
        rng = random.Random((self.settings.seed << 48) + number)
        if start == WHOLE or self._viewer is None:
            example = self._load(row)
        else:
            text = self._store.tokens(row)[1:]  # without bos
            tokens, span = self._viewer.view(text, start, prompt, canvas_length, rng)
            example = Example(
                tokens=tuple(tokens),
                spans=(span,),
                source=self.settings.files[self._files[row]],
                line=self._lines[row],
            )
        return self._with_prompt(example, prompt, canvas_length, rng) if self.settings.prompt_lengths else example

    def _with_prompt(self, example: Example, prompt: int, canvas_length: int, rng: random.Random) -> Example:
        """Return one canvas of the example after exactly `prompt` tokens.

        A longer prompt loses its first tokens; a shorter one is filled with the ends of other entries. A batch of such
        examples needs no padding and no mask, and the encoder is trained on the filling too.
        """
        canvases = [at for start, end in example.spans for at in range(start, end, canvas_length)]
        at = canvases[int(rng.random() * len(canvases))]
        end = next(end for start, end in example.spans if start <= at < end)
        filling: list[int] = []
        while at + len(filling) < prompt:
            entry = int(rng.random() * len(self._entry_rows))
            filling = [*self._ending(entry, prompt - at - len(filling)), *filling]
        before = [*filling, *example.tokens[max(0, at - prompt) : at]]
        response = example.tokens[at : min(at + canvas_length, end)]
        return replace(example, tokens=(*before, *response), spans=((prompt, prompt + len(response)),))

    def _ending(self, entry: int, most: int) -> list[int]:
        """Return the last tokens of an entry."""
        tokens = self._store.tokens(int(self._entry_rows[entry]))
        start = int(self._entry_starts[entry])
        end = len(tokens) if start == WHOLE else min(len(tokens), start + self.settings.max_length)
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
