"""What a product is made with: a tensor, or a matrix kept in few bits.

The plain operations turn the latter into a tensor when they use it, one expert at a time, and forget it again. A kernel
looks at `Packed.format` and takes `Packed.tensors` as they are; `checkpoint/quantize/` has the layout of each format.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Unpack = Callable[[Mapping[str, Tensor]], Tensor]


class Packed(nn.Module):
    """A matrix [O, I], or experts [E, O, I], as the tensors of a format. It stands where the parameter stood."""

    def __init__(self, format: str, shape: tuple[int, ...], tensors: Mapping[str, Tensor], unpack: Unpack) -> None:
        super().__init__()
        self.format, self.shape, self.unpack = format, shape, unpack
        for key, tensor in tensors.items():
            self.register_buffer(key, tensor)

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {key: tensor for key, tensor in self._buffers.items() if tensor is not None}

    @property
    def device(self) -> torch.device:
        return next(self.buffers()).device

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.unpack(self.tensors).to(dtype)

    def split(self, rows: int) -> "list[Packed]":
        """A matrix as stretches of its rows, in a format whose tensors all lead with them, as those of FP8 do."""
        parts = zip(*(tensor.split(rows) for tensor in self.tensors.values()), strict=True)
        return [
            Packed(
                self.format, (len(part[0]), *self.shape[1:]), dict(zip(self.tensors, part, strict=True)), self.unpack
            )
            for part in parts
        ]

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Some of its rows, in such a format too. As bytes: not every dtype of few bits can be picked from."""
        picked = {key: t.view(torch.uint8)[index].view(t.dtype) for key, t in self.tensors.items()}
        return self.unpack(picked).to(dtype)

    def unbind(self) -> "list[Packed]":
        """The matrices of a stack: in every format, each of its tensors leads with the experts."""
        keys, columns = self.tensors.keys(), zip(*(tensor.unbind() for tensor in self.tensors.values()), strict=True)
        return [Packed(self.format, self.shape[1:], dict(zip(keys, one, strict=True)), self.unpack) for one in columns]

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """`module.to(dtype)` is about numbers to compute with; these are codes, and only move."""

        def move(tensor: Tensor) -> Tensor:
            moved: Tensor = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, recurse)  # type: ignore[no-untyped-call]


Weight = Tensor | Packed


class Change(Protocol):
    """A low-rank change of a weight: scale * B A, with A [L, I] and B [O, L], or for experts one of each an expert."""

    A: nn.Parameter
    B: nn.Parameter

    @property
    def scale(self) -> float: ...


class Adapted(NamedTuple):
    weight: Weight
    change: Change | None = None

    @property
    def wants(self) -> str | None:
        """The format for which a kernel wants the tokens prepared, if nobody else wants them otherwise."""
        return self.weight.format if isinstance(self.weight, Packed) and self.change is None else None


def wanted(matrices: Sequence[Adapted]) -> str | None:
    """What all of them want, who are given the same tokens."""
    formats = {matrix.wants for matrix in matrices}
    return formats.pop() if len(formats) == 1 else None


# Tokens as some products take them. Only kernels make them, and only for those.


class Rounded(NamedTuple):
    """In FP8, with a scale each."""

    low_TI: Tensor
    scale_T: Tensor
    dtype: torch.dtype  # of the tokens, and of what is made of them


class Turned(NamedTuple):
    """With their columns in the order in which weights of four bits are read (`kernels/four.py`)."""

    turned_TI: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.turned_TI.dtype


Rows = Tensor | Rounded | Turned


class Parts(NamedTuple):
    """A product as sums over stretches of its inputs, still to be added, in order: kernels leave that to whoever reads
    them."""

    sums_PTO: Tensor  # float32


def dense(weight: Weight, dtype: torch.dtype) -> Tensor:
    """A tensor as it is; under autocast it may have a dtype of its own."""
    return weight.dense(dtype) if isinstance(weight, Packed) else weight


def embed(ids: Tensor, table_VH: Weight, dtype: torch.dtype, padding: int | None = None) -> Tensor:
    """The rows of a table. `padding` learns nothing, which changes no value."""
    return table_VH.rows(ids, dtype) if isinstance(table_VH, Packed) else F.embedding(ids, table_VH, padding)


def multiply(x: Tensor, weight_OI: Weight) -> Tensor:
    return F.linear(x, dense(weight_OI, x.dtype))
