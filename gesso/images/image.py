"""An image as the model reads it: patches of pixels.

P patches.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Image:
    """The patches of a resized picture, row by row. A patch is [patch, patch, 3] pixels, flattened."""

    patches: NDArray[np.uint8]  # [P, 3 * patch * patch]
    rows: int  # of patches
    columns: int
    tokens: int  # soft tokens that stand for it in a prompt

    @cached_property
    def digest(self) -> int:
        """128 bits that name the image: two with the same digest have the same pixels and the same size."""
        hashed = hashlib.sha256(f"{self.rows} {self.columns} {self.tokens}\n".encode())
        hashed.update(np.ascontiguousarray(self.patches).data)
        return int.from_bytes(hashed.digest()[:16], "big")
