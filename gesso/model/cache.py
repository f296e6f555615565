"""The committed keys and values: all of them in global layers, a ring of the last window - 1 in sliding ones.

B rows (one a sequence), L capacity, M key/value heads, D head dim. Keys are stored rotated, so their order in the
ring does not matter to attention; `read` gives them in order all the same, for the causal mask.
"""

import torch
from torch import Tensor

from gesso.config import Config
from gesso.errors import InputError


class LayerKV:
    def __init__(self, k_BLMD: Tensor, v_BLMD: Tensor, window: int | None) -> None:
        self.k_BLMD, self.v_BLMD, self.window = k_BLMD, v_BLMD, window

    def read(self, row: int, length: int) -> tuple[Tensor, Tensor]:
        if self.window is None:
            return self.k_BLMD[row, :length], self.v_BLMD[row, :length]
        slots = self._slots(max(0, length - (self.window - 1)), length)
        return self.k_BLMD[row, slots], self.v_BLMD[row, slots]

    def write(self, row: int, start: int, k_SMD: Tensor, v_SMD: Tensor) -> None:
        end = start + k_SMD.shape[0]
        if self.window is not None:
            start = max(start, end - (self.window - 1))  # what would be overwritten at once is not written
        slots = self._slots(start, end)
        self.k_BLMD[row, slots] = k_SMD[start - end :]
        self.v_BLMD[row, slots] = v_SMD[start - end :]

    def _slots(self, start: int, end: int) -> Tensor:
        return torch.arange(start, end, device=self.k_BLMD.device) % self.k_BLMD.shape[1]


class KVCache:
    """`lengths[row]` tokens are committed in each row; the capacity is `max_length` tokens a row."""

    def __init__(
        self, config: Config, batch_size: int, max_length: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.config, self.max_length = config, max_length
        self.lengths = [0] * batch_size
        self.layers: list[LayerKV] = []
        for shape in config.layers:
            window = config.sliding_window if shape.sliding else None
            capacity = min(window - 1, max_length) if window else max_length
            size = (batch_size, capacity, shape.kv_heads, shape.head_dim)
            k, v = (torch.zeros(size, device=device, dtype=dtype) for _ in range(2))
            self.layers.append(LayerKV(k, v, window))

    @property
    def nbytes(self) -> int:
        return sum(layer.k_BLMD.nbytes + layer.v_BLMD.nbytes for layer in self.layers)

    def reserve(self, row: int, tokens: int) -> None:
        """Refuse what would not fit, before anything is written."""
        if self.lengths[row] + tokens > self.max_length:
            raise InputError(
                f"context overflow: {self.lengths[row]} tokens are cached and {tokens} more do not fit "
                f"the cache of {self.max_length}; make it larger or the text shorter"
            )

    def can_truncate(self, row: int, length: int) -> bool:
        """Whether the row can be cut back: a ring that has begun to overwrite has lost what the cut would need."""
        return length in (0, self.lengths[row]) or self.lengths[row] <= self.config.sliding_window - 1

    def truncate(self, row: int, length: int) -> None:
        if length > self.lengths[row] or not self.can_truncate(row, length):
            raise ValueError(f"row {row} holds {self.lengths[row]} tokens and cannot be cut back to {length}")
        self.lengths[row] = length

    def grown(self, batch_size: int, max_length: int) -> "KVCache":
        """A larger cache with the same contents."""
        old = self.layers[0].k_BLMD
        new = KVCache(self.config, batch_size, max_length, old.device, old.dtype)
        new.lengths[: len(self.lengths)] = self.lengths
        for source, target in zip(self.layers, new.layers, strict=True):
            rows, capacity = source.k_BLMD.shape[:2]
            target.k_BLMD[:rows, :capacity] = source.k_BLMD
            target.v_BLMD[:rows, :capacity] = source.v_BLMD
        return new
