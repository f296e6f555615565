"""The rows of a dataset in temporary files: their tokens, four bytes each, and their images.

Memory holds two numbers per row: where it starts in the file, and its length in tokens. In the file a row is

    file, line, context_only, number of spans, number of images        5 values of 4 bytes
    start and end of each span                                          2 values per span
    start and number of each image                                      2 values per image
    the tokens
"""

import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from gesso.errors import InputError
from gesso.images.image import Image
from gesso.train.image_store import ImageStore
from gesso.train.reading import TrainingRow
from gesso.train.rows import Span

HEADER = 5  # values before the spans
VALUE_BYTES = 4

Values = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class StoredRow:
    file: int  # index of the data file
    line: int  # in that file
    tokens: tuple[int, ...]
    spans: tuple[Span, ...]
    context_only: int
    images: tuple[Image, ...]
    image_starts: tuple[int, ...]


class TokenStore:
    """Rows by number. All are appended, then the store is closed, then rows are loaded."""

    def __init__(self) -> None:
        self.images = ImageStore()
        self._offsets = array("q")  # of rows in the file, in values
        self._lengths = array("q")  # of rows, in tokens
        self._values: Values = np.empty(0, dtype=np.int32)
        try:
            self._file = tempfile.TemporaryFile(prefix="gesso-tokens-")  # noqa: SIM115
        except OSError as error:
            raise _no_space(error) from error

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def lengths(self) -> Sequence[int]:
        """The lengths of all rows in tokens."""
        return self._lengths

    def append(self, row: TrainingRow, file: int, line: int) -> None:
        image_numbers = [self.images.add(image) for image in row.images]
        values = array("i", (file, line, row.context_only, len(row.spans), len(row.images)))
        values.extend(chain.from_iterable(row.spans))
        values.extend(chain.from_iterable(zip(row.starts, image_numbers, strict=True)))
        values.extend(row.tokens)
        try:
            offset = self._file.tell()
            self._file.write(values)
        except OSError as error:
            raise _no_space(error) from error
        self._offsets.append(offset // VALUE_BYTES)
        self._lengths.append(len(row.tokens))

    def close(self) -> None:
        """End appending. Rows are then read through a memory map, by threads and forks at once."""
        self.images.close()
        try:
            self._file.flush()
        except OSError as error:
            raise _no_space(error) from error
        if len(self):
            self._values = np.memmap(self._file, dtype=np.int32, mode="r")  # outlives its file
        self._file.close()

    def load(self, row: int) -> StoredRow:
        parts = self._parts(row)
        return StoredRow(
            file=parts.file,
            line=parts.line,
            tokens=tuple(parts.tokens.tolist()),
            spans=tuple((start, end) for start, end in parts.spans.tolist()),
            context_only=parts.context_only,
            images=tuple(self.images.get(number) for _, number in parts.images.tolist()),
            image_starts=tuple(start for start, _ in parts.images.tolist()),
        )

    def tokens(self, row: int) -> Values:
        """Return the tokens of a row without copying them."""
        return self._parts(row).tokens

    def origin(self, row: int) -> tuple[int, int]:
        """Return the index of a row's file, and its line."""
        parts = self._parts(row)
        return parts.file, parts.line

    def _parts(self, row: int) -> "_Parts":
        """Return the parts of a stored row without copying them."""
        values = self._values[self._offsets[row] :]
        file, line, context_only, spans, images = values[:HEADER].tolist()
        images_at = HEADER + 2 * spans
        tokens_at = images_at + 2 * images
        return _Parts(
            file=file,
            line=line,
            context_only=context_only,
            spans=values[HEADER:images_at].reshape(-1, 2),
            images=values[images_at:tokens_at].reshape(-1, 2),
            tokens=values[tokens_at : tokens_at + self._lengths[row]],
        )


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The parts of a stored row. Arrays are views of the file."""

    file: int
    line: int
    context_only: int
    spans: Values  # [spans, 2], start and end
    images: Values  # [images, 2], start in the tokens and number in the image store
    tokens: Values


def _no_space(error: OSError) -> InputError:
    return InputError(
        f"cannot store the tokens in {tempfile.gettempdir()} ({error}); set TMPDIR to a directory with free space"
    )
