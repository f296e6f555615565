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
import tempfile
from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import BinaryIO, Protocol

import numpy as np

from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.images.image import Image
from gesso.train.image_rows import ImageReader
from gesso.train.image_store import ImageStore
from gesso.train.order import order
from gesso.train.reading import read_rows
from gesso.train.recipe import DataSettings
from gesso.train.rows import Span
from gesso.train.trajectories import Trajectory
from gesso.train.views import Viewer

LISTED = 20  # rejected rows named by the error that stops a run
WHOLE = -1  # in place of a start: the entry shows its whole row
COUNTS = 3  # before a stored row: responses that are context only, spans, images


@dataclass(frozen=True)
class Example:
    tokens: tuple[int, ...]
    spans: tuple[Span, ...]
    """[start, end) of each response to train on, end token included. At least one token comes before it."""
    source: str
    line: int
    context_only: int = 0
    """Responses of the conversation that serve as context and not as targets (see `rows._conversation`)."""
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
        self, settings: DataSettings, tokenizer: Tokenizer, eos: int, images: ImageReader | None = None
    ) -> None:
        self.settings, self.reader = settings, images
        self.images = ImageStore()
        self.rows = 0
        self._rejected: dict[int, Rejected] = {}  # by number of the row
        # One value per good row: index of its file, line, offset in the store, length in tokens.
        columns = self._file, self._line, self._offset, self._length = tuple(array("q") for _ in range(4))
        viewing = settings.cut or settings.infill > 0
        self._viewer = Viewer.create(tokenizer, eos, settings.max_length, settings.infill) if viewing else None
        # One value per entry: number of the good row, start of the section, padded length.
        entry_rows, entry_starts, entry_lengths = array("q"), array("q"), array("q")
        with _token_store() as store:
            for file, line, read in read_rows(settings, tokenizer, eos, images):
                if isinstance(read, str):
                    self._rejected[self.rows] = Rejected(settings.files[file], line, read)
                else:
                    length = len(read.tokens)
                    for column, value in zip(columns, (file, line, store.tell() // 4, length), strict=True):
                        column.append(value)
                    numbers = map(self.images.add, read.images)
                    placed = chain.from_iterable(zip(read.starts, numbers, strict=True))
                    counts = read.context_only, len(read.spans), len(read.images)
                    store.write(array("i", (*counts, *chain(*read.spans), *placed, *read.tokens)))
                    starts = self._viewer.starts(length) if self._viewer and read.is_text else (WHOLE,)
                    for start in [*starts] * (settings.repeat[file] if settings.repeat else 1):
                        entry_rows.append(len(self._file) - 1)
                        entry_starts.append(start)
                        entry_lengths.append(-(-min(length, settings.max_length) // settings.pad_to) * settings.pad_to)
                self.rows += 1
            store.flush()
            self.images.close()
            self._entry_rows, self._entry_starts, self._entry_lengths = (
                np.array(column, dtype=np.int64) for column in (entry_rows, entry_starts, entry_lengths)
            )
            # A memory map outlives its file, and threads and forks can read it at once.
            self._store = np.memmap(store, dtype=np.int32, mode="r") if self._file else np.empty(0, np.int32)
        if self._rejected and settings.on_bad_row == "stop":
            raise InputError(_rejection_message(self.rejected, self.rows))

    @property
    def rejected(self) -> list[Rejected]:
        return list(self._rejected.values())

    @property
    def good(self) -> int:
        return len(self._file)

    def take_out(self, rows: Collection[int]) -> list[Example]:
        """Return these good rows, numbered in the order of the files, and leave them out of the batches."""
        kept = ~np.isin(self._entry_rows, list(rows))
        self._entry_rows, self._entry_starts, self._entry_lengths = (
            column[kept] for column in (self._entry_rows, self._entry_starts, self._entry_lengths)
        )
        return [self._load(row) for row in rows]

    @property
    def entries(self) -> int:
        """The number of entries of an epoch."""
        return len(self._entry_rows)

    @property
    def lengths(self) -> Sequence[int]:
        """The lengths of the good rows in tokens."""
        return self._length

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
        shapes = self._shapes(canvas_lengths)
        share = slice(rank * batch_size // world, (rank + 1) * batch_size // world)
        batches = islice(order(self._entry_lengths, batch_size, self.settings.seed, start), 0, None, stride)
        numbered = zip(count(start, stride), batches, strict=False)
        return (
            tuple(
                self._example(entry, number * batch_size + place, *shapes[number % len(shapes)])
                for place, entry in enumerate(batch[share], start=share.start)
            )
            for number, batch in numbered
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
        row, start = int(self._entry_rows[entry]), int(self._entry_starts[entry])
        rng = random.Random((self.settings.seed << 48) + number)
        if start == WHOLE or self._viewer is None:
            example = self._load(row)
        else:
            text = self._text(row)
            stored = self._store[text + 1 : text + self._length[row]]
            tokens, span = self._viewer.view(stored, start, prompt, canvas_length, rng)
            example = Example(tuple(tokens), (span,), self.settings.files[self._file[row]], self._line[row])
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
        while (missing := prompt - at - len(filling)) > 0:
            filling = [*self._ending(int(rng.random() * len(self._entry_rows)), missing), *filling]
        before = [*filling, *example.tokens[max(0, at - prompt) : at]]
        response = example.tokens[at : min(at + canvas_length, end)]
        return replace(example, tokens=(*before, *response), spans=((prompt, prompt + len(response)),))

    def _ending(self, entry: int, most: int) -> list[int]:
        """Return the last tokens of an entry."""
        row, start = int(self._entry_rows[entry]), int(self._entry_starts[entry])
        first = self._text(row)
        length = self._length[row] if start == WHOLE else min(self._length[row], start + self.settings.max_length)
        ending: list[int] = self._store[first + max(0, length - most) : first + length].tolist()
        return ending

    def _text(self, row: int) -> int:
        """Return where the tokens of a good row are in the store: after its counts, spans and images."""
        offset = self._offset[row]
        _, spans, images = self._store[offset : offset + COUNTS].tolist()
        return offset + COUNTS + 2 * (spans + images)

    def _load(self, row: int) -> Example:
        offset, text = self._offset[row], self._text(row)
        context_only, spans, _ = self._store[offset : offset + COUNTS].tolist()
        pairs = self._store[offset + COUNTS : text].reshape(-1, 2).tolist()
        return Example(
            tokens=tuple(self._store[text : text + self._length[row]].tolist()),
            spans=tuple((start, end) for start, end in pairs[:spans]),
            source=self.settings.files[self._file[row]],
            line=self._line[row],
            context_only=context_only,
            images=tuple(self.images.get(number) for _, number in pairs[spans:]),
            starts=tuple(start for start, _ in pairs[spans:]),
        )


def _rejection_message(rejected: Sequence[Rejected], rows: int) -> str:
    shown = "\n".join(f"  {row}" for row in rejected[:LISTED])
    more = f"\n  … and {len(rejected) - LISTED:,} more" if len(rejected) > LISTED else ""
    advice = 'Correct them, or set on_bad_row = "skip" to train without them.'
    return f"{len(rejected):,} of {rows:,} rows cannot be used:\n{shown}{more}\n{advice}"


@contextmanager
def _token_store() -> Iterator[BinaryIO]:
    try:
        with tempfile.TemporaryFile(prefix="gesso-tokens-") as file:
            yield file
    except OSError as error:
        raise InputError(
            f"cannot store the tokens in {tempfile.gettempdir()} ({error}); set TMPDIR to a directory with free space"
        ) from error
