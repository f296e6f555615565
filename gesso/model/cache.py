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
        self.saved: tuple[Tensor, Tensor] | None = None  # a second copy of the ring, allocated when first needed

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

    def save(self, row: int) -> None:
        if self.saved is None:
            self.saved = torch.zeros_like(self.k_BLMD), torch.zeros_like(self.v_BLMD)
        self.saved[0][row], self.saved[1][row] = self.k_BLMD[row], self.v_BLMD[row]

    def restore(self, row: int) -> None:
        assert self.saved is not None, "nothing was saved"
        self.k_BLMD[row], self.v_BLMD[row] = self.saved[0][row], self.saved[1][row]

    def take_over(self, other: "LayerKV") -> None:
        """The contents of a smaller cache. A token keeps its slot, for a ring wraps only at its full size."""
        rows, capacity = other.k_BLMD.shape[:2]
        self.k_BLMD[:rows, :capacity], self.v_BLMD[:rows, :capacity] = other.k_BLMD, other.v_BLMD
        if other.saved is not None:
            self.saved = torch.zeros_like(self.k_BLMD), torch.zeros_like(self.v_BLMD)
            self.saved[0][:rows, :capacity], self.saved[1][:rows, :capacity] = other.saved

    def _slots(self, start: int, end: int) -> Tensor:
        return torch.arange(start, end, device=self.k_BLMD.device) % self.k_BLMD.shape[1]


class KVCache:
    """`lengths[row]` tokens are committed in each row; the capacity is `max_length` tokens a row."""

    def __init__(
        self, config: Config, batch_size: int, max_length: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.config, self.max_length = config, max_length
        self.lengths = [0] * batch_size
        self.saved = [0] * batch_size  # how long each row was when its rings were saved; 0: not saved
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

    def can_cut(self, row: int, length: int) -> bool:
        """Whether the row can be cut back to its first `length` tokens.

        Global layers can always forget the end. A ring that has begun to overwrite has lost what the cut would need,
        unless that very state was saved.
        """
        intact = self.lengths[row] <= self.config.sliding_window - 1
        return length in (0, self.lengths[row], self.saved[row]) or intact

    def cut(self, row: int, length: int) -> None:
        if length > self.lengths[row] or not self.can_cut(row, length):
            raise ValueError(f"row {row} holds {self.lengths[row]} tokens and cannot be cut back to {length}")
        if length == self.saved[row] != 0:
            for layer in self._rings():
                layer.restore(row)
        elif length < self.saved[row]:
            self.saved[row] = 0
        self.lengths[row] = length

    def save(self, row: int) -> None:
        """Remember the rings of a row as they are now, so that it can be cut back to here later."""
        for layer in self._rings():
            layer.save(row)
        self.saved[row] = self.lengths[row]

    def _rings(self) -> "list[LayerKV]":
        return [layer for layer in self.layers if layer.window is not None]

    def grown(self, batch_size: int, max_length: int) -> "KVCache":
        """A larger cache with the same contents."""
        old = self.layers[0].k_BLMD
        new = KVCache(self.config, batch_size, max_length, old.device, old.dtype)
        new.lengths[: len(self.lengths)] = self.lengths
        new.saved[: len(self.saved)] = self.saved
        for source, target in zip(self.layers, new.layers, strict=True):
            target.take_over(source)
        return new
