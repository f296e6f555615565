"""The rows of a dataset in temporary files: their tokens, four bytes each, and their images.

Memory holds two numbers per row. A stored row is three counts (responses that are context only, spans, images), the
spans, the number and the place of each image, and the tokens.
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

COUNTS = 3
VALUE_BYTES = 4

Values = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class StoredRow:
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

    def append(self, row: TrainingRow) -> None:
        numbers = [self.images.add(image) for image in row.images]
        values = array("i", (row.context_only, len(row.spans), len(row.images)))
        values.extend(chain.from_iterable(row.spans))
        values.extend(chain.from_iterable(zip(row.starts, numbers, strict=True)))
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
        record = self._record(row)
        return StoredRow(
            tokens=tuple(record.tokens.tolist()),
            spans=tuple((start, end) for start, end in record.spans.tolist()),
            context_only=record.context_only,
            images=tuple(self.images.get(number) for _, number in record.images.tolist()),
            image_starts=tuple(start for start, _ in record.images.tolist()),
        )

    def tokens(self, row: int) -> Values:
        """Return the tokens of a row without copying them."""
        return self._record(row).tokens

    def _record(self, row: int) -> "_Record":
        """Return the parts of a stored row without copying them."""
        rest = self._values[self._offsets[row] :]
        context_only, spans, images = rest[:COUNTS].tolist()
        span_values, rest = np.split(rest[COUNTS:], [2 * spans])
        image_values, rest = np.split(rest, [2 * images])
        return _Record(
            context_only=context_only,
            spans=span_values.reshape(-1, 2),
            images=image_values.reshape(-1, 2),
            tokens=rest[: self._lengths[row]],
        )


@dataclass(frozen=True, kw_only=True)
class _Record:
    """The parts of a stored row, as views of the file."""

    context_only: int
    spans: Values  # [spans, 2], start and end
    images: Values  # [images, 2], place and number in the image store
    tokens: Values


def _no_space(error: OSError) -> InputError:
    return InputError(
        f"cannot store the tokens in {tempfile.gettempdir()} ({error}); set TMPDIR to a directory with free space"
    )
