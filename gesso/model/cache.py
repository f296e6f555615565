"""The KV cache: all keys and values in global layers, a ring of the last window - 1 in sliding layers.

A ring has room for a few more, so that the last tokens of a row can be taken back: drafts that the encoder rejects.

Each row (one sequence) has its own tensors, so a long text does not enlarge the others. Keys are stored rotated, so
attention does not depend on their order in the ring; `read` returns them in order for the causal mask.

L capacity of a row, M key/value heads, D head dim.
"""

import sys

import torch
from torch import Tensor

from gesso.errors import InputError
from gesso.model.config import Config, LayerShape

SPARE = 64  # tokens that a ring holds beyond the window


class LayerKV:
    """One layer. `k[row]` and `v[row]` are [L, M, D]."""

    def __init__(
        self, shape: LayerShape, window: int, device: torch.device, dtype: torch.dtype, spare: int = SPARE
    ) -> None:
        self.window = window if shape.sliding else None
        self.spare = spare
        self._empty_LMD = torch.zeros(0, shape.kv_heads, shape.head_dim, device=device, dtype=dtype)
        self.k: list[Tensor] = []
        self.v: list[Tensor] = []
        self.saved: dict[int, tuple[Tensor, Tensor]] = {}  # copies of rings, by row

    @property
    def most(self) -> int:
        """Upper bound of the tokens that a row holds."""
        return sys.maxsize if self.window is None else self.window - 1 + self.spare

    def read(self, row: int, length: int) -> tuple[Tensor, Tensor]:
        if self.window is None:
            return self.k[row][:length], self.v[row][:length]
        slots = self._slots(row, max(0, length - (self.window - 1)), length)
        return self.k[row][slots], self.v[row][slots]

    def write(self, row: int, start: int, k_SMD: Tensor, v_SMD: Tensor) -> None:
        end = start + k_SMD.shape[0]
        if self.window is not None:
            start = max(start, end - len(self.k[row]))  # skip tokens that would be overwritten at once
        slots = self._slots(row, start, end)
        self.k[row][slots] = k_SMD[start - end :]
        self.v[row][slots] = v_SMD[start - end :]

    def add_row(self) -> None:
        self.k.append(self._empty_LMD)
        self.v.append(self._empty_LMD)

    def grow(self, row: int, length: int) -> None:
        """Enlarge a row to `length` tokens. Contents keep their slots: a ring wraps only at its full size."""
        capacity = min(length, self.most)
        for tensors in (self.k, self.v):
            old = tensors[row]
            if capacity > len(old):
                tensors[row] = old.new_zeros(capacity, *old.shape[1:])
                tensors[row][: len(old)] = old

    def save(self, row: int) -> None:
        self.saved[row] = self.k[row].clone(), self.v[row].clone()

    def restore(self, row: int) -> None:
        for target, saved in zip((self.k[row], self.v[row]), self.saved[row], strict=True):
            target[: len(saved)] = saved

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self.k, *self.v, *(t for pair in self.saved.values() for t in pair)))

    def _slots(self, row: int, start: int, end: int) -> Tensor:
        return torch.arange(start, end, device=self._empty_LMD.device) % max(len(self.k[row]), 1)


class KVCache:
    """`lengths[row]` tokens are committed in each row, which has room for `capacities[row]`."""

    def __init__(
        self,
        config: Config,
        batch_size: int,
        max_length: int,
        device: torch.device,
        dtype: torch.dtype,
        spare: int = SPARE,
    ) -> None:
        self.layers = [LayerKV(shape, config.sliding_window, device, dtype, spare) for shape in config.layers]
        self.spare = spare
        self.device = device
        self.version = 0  # increases whenever the tensors of a row are replaced
        self.rings = [layer for layer in self.layers if layer.window is not None]
        self.ring = config.sliding_window - 1 + spare  # tokens that a full ring holds
        self.lengths: list[int] = []
        self.capacities: list[int] = []
        self.reached: list[int] = []  # tokens up to which rings were written, before the row was last cut
        self.saved: list[tuple[int, int]] = []  # length and reach of each row when its rings were saved; 0: not saved
        for _ in range(batch_size):
            self.add_row(max_length)

    def add_row(self, capacity: int) -> None:
        for layer in self.layers:
            layer.add_row()
        self.lengths.append(0)
        self.capacities.append(0)
        self.reached.append(0)
        self.saved.append((0, 0))
        self.grow(len(self.lengths) - 1, capacity)

    def grow(self, row: int, capacity: int) -> None:
        """Enlarge a row layer by layer, so that old and new tensors exist together for one layer only."""
        if capacity > self.capacities[row]:
            for layer in self.layers:
                layer.grow(row, capacity)
            self.capacities[row] = capacity
            self.version += 1

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def reserve(self, row: int, tokens: int) -> None:
        """Raise InputError if `tokens` more do not fit, before anything is written."""
        if self.lengths[row] + tokens > self.capacities[row]:
            raise InputError(
                f"context overflow: {self.lengths[row]} tokens are cached and {tokens} more do not fit "
                f"the cache of {self.capacities[row]}; use a larger cache or a shorter text"
            )

    def can_cut(self, row: int, length: int) -> bool:
        """Return whether the row can be cut back to its first `length` tokens.

        Global layers can always be cut. A ring that has wrapped has overwritten tokens that the cut may need, unless
        the state at that length was saved.
        """
        oldest = self._reach(row) - self.ring  # earlier tokens have been overwritten
        intact = not self.rings or oldest <= max(0, length - (self.ring - self.spare))
        return length in (0, self.lengths[row], self.saved[row][0]) or intact

    def cut(self, row: int, length: int) -> None:
        if length > self.lengths[row] or not self.can_cut(row, length):
            raise ValueError(f"row {row} holds {self.lengths[row]} tokens and cannot be cut back to {length}")
        saved, reached = self.saved[row]
        if length == saved != 0:
            for layer in self.rings:
                layer.restore(row)
            self.reached[row] = reached
        else:
            self.reached[row] = self._reach(row) if length else 0
            if length < saved:
                self.saved[row] = 0, 0
        self.lengths[row] = length

    def save(self, row: int, length: int) -> None:
        """Save the rings of a row, so that it can be cut back to `length` later, to which it could be cut now."""
        self.saved[row] = 0, 0  # an interrupted save must not count
        for layer in self.rings:
            layer.save(row)
        self.saved[row] = length, self._reach(row)

    def _reach(self, row: int) -> int:
        return max(self.reached[row], self.lengths[row])
