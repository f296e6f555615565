"""The images of a dataset, in a temporary file: each once, however many rows show it.

P patches of all images, I values of a patch.
"""

import tempfile
from array import array
from typing import IO

import numpy as np
from numpy.typing import NDArray

from gesso.errors import InputError
from gesso.images.image import Image


class ImageStore:
    """Images by number, in the order in which they were added first."""

    def __init__(self) -> None:
        self._number: dict[int, int] = {}  # by digest
        # One value per image: its first patch in the file, rows, columns, soft tokens.
        self._first = array("q")
        self._rows = array("q")
        self._columns = array("q")
        self._tokens = array("q")
        self._width = 0  # values of a patch
        self._file: IO[bytes] | None = None
        self._patches_PI: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self._number)

    def add(self, image: Image) -> int:
        """Store an image, unless an equal one is there, and return its number."""
        number = self._number.setdefault(image.digest, len(self._number))
        if number < len(self._first):
            return number
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="gesso-images-")  # noqa: SIM115
            self._width = image.patches.shape[1]
            first = self._file.tell() // self._width
            self._file.write(np.ascontiguousarray(image.patches).data)
        except OSError as error:
            raise InputError(
                f"cannot store images in {tempfile.gettempdir()} ({error}); set TMPDIR to a directory with free space"
            ) from error
        self._first.append(first)
        self._rows.append(image.rows)
        self._columns.append(image.columns)
        self._tokens.append(image.tokens)
        return number

    def close(self) -> None:
        """End adding. The images are then read from the file, by threads and forks at once."""
        if self._file is not None:
            self._file.flush()
            self._patches_PI = np.memmap(self._file, dtype=np.uint8, mode="r").reshape(-1, self._width)
            self._file.close()
            self._file = None

    def get(self, number: int) -> Image:
        assert self._patches_PI is not None
        first = self._first[number]
        rows = self._rows[number]
        columns = self._columns[number]
        return Image(
            patches=self._patches_PI[first : first + rows * columns],
            rows=rows,
            columns=columns,
            tokens=self._tokens[number],
        )

    @property
    def digests(self) -> list[int]:
        """The digests of all images, in order."""
        return list(self._number)
