"""A quantized matrix that takes the place of a parameter.

Plain modules use it through torch functions: `F.linear`, `F.embedding` and a few others accept it where they accept a
tensor, and unpack as little of it as they can, one expert at a time. A kernel reads `Packed.tensors` directly; the
modules of this package define the layout of each format.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

Unpack = Callable[[Mapping[str, Tensor]], Tensor]
Product = Callable[[Tensor], Tensor]
TABLE_ROWS = 32768  # of a large matrix, unpacked at once
PART_VALUES = 96 * 2**20  # of a stack of experts, unpacked at once: 201 MB in bfloat16
PART_MULTIPLE = 128  # of rows or columns: the tile of a product, and a multiple of the group of every format


class Packed(nn.Module):
    """A matrix [O, I], or experts [E, O, I], as the tensors of a format. `dtype` is the dtype it unpacks to.

    A backend may set two kernels, which are used where no gradient is needed: `product` multiplies rows by the matrix,
    and `mixture` returns weighted sums of its rows.
    """

    product: Product | None = None
    mixture: Product | None = None

    def __init__(
        self,
        format: str,
        shape: tuple[int, ...],
        tensors: Mapping[str, Tensor],
        unpack: Unpack,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.format = format
        self.shape = shape
        self.unpack = unpack
        self.dtype = dtype
        for key, tensor in tensors.items():
            self.register_buffer(key, tensor)

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {key: tensor for key, tensor in self._buffers.items() if tensor is not None}

    @property
    def device(self) -> torch.device:
        return next(self.buffers()).device

    def __len__(self) -> int:
        return self.shape[0]

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        return self.unpack(self.tensors).to(dtype or self.dtype)

    def unbind(self) -> "list[Packed]":
        """Return the matrices of all experts: in every format, each tensor has the experts as its first dimension."""
        columns = zip(*(tensor.unbind() for tensor in self.tensors.values()), strict=True)
        return [self._with(self.shape[1:], tensors) for tensors in columns]

    def split(self, rows: int) -> "list[Packed]":
        """Return blocks of rows; for formats with a scale for each row, or for each group of a row."""
        parts = zip(*(tensor.split(rows) for tensor in self._by_row.values()), strict=True)
        return [self._of_rows(len(part[0]), dict(zip(self._by_row, part, strict=True))) for part in parts]

    def row_parts(self, most: int | None = None, multiple: int | None = None) -> "list[tuple[slice, Packed]]":
        """Return blocks of rows of all experts, and where they are, of at most `most` values if possible.

        By default, these are PART_VALUES. A block has a multiple of `multiple` rows, by default of PART_MULTIPLE.
        """
        experts, rows, inputs = self.shape
        blocks = _parts(rows, experts * inputs, most or PART_VALUES, multiple or PART_MULTIPLE)
        return [(at, self._rows_of_experts(at)) for at in blocks]

    def column_parts(self, most: int | None = None, multiple: int | None = None) -> "list[tuple[slice, Packed]]":
        """Return blocks of columns of all experts, and where they are, as `row_parts` does with rows."""
        experts, rows, inputs = self.shape
        blocks = _parts(inputs, experts * rows, most or PART_VALUES, multiple or PART_MULTIPLE)
        return [(at, self._columns_of_experts(at)) for at in blocks]

    def rows(self, index: Tensor) -> Tensor:
        """Return some rows, for the same formats. Indexing is by bytes: it is not implemented for all dtypes."""
        picked = {key: t.view(torch.uint8)[index].view(t.dtype) for key, t in self._by_row.items()}
        return self.unpack(picked).to(self.dtype)

    @property
    def _by_row(self) -> dict[str, Tensor]:
        """The tensors with the rows as first dimension: all but int4's `weight_shape`, which `unpack` does not need."""
        return {key: tensor for key, tensor in self.tensors.items() if key != "weight_shape"}

    def _of_rows(self, rows: int, tensors: Mapping[str, Tensor]) -> "Packed":
        return Packed(self.format, (rows, *self.shape[1:]), tensors, self.unpack, self.dtype)

    def _rows_of_experts(self, at: slice) -> "Packed":
        experts, rows, inputs = self.shape
        part = {}
        for key, tensor in self._by_row.items():
            if key == "weight_global_scale":  # one per expert, or one for each half of its rows
                part[key] = tensor.repeat_interleave(rows // tensor.shape[1], dim=1)[:, at]
            else:
                part[key] = tensor[:, at]
        return Packed(self.format, (experts, at.stop - at.start, inputs), part, self.unpack, self.dtype)

    def _columns_of_experts(self, at: slice) -> "Packed":
        experts, rows, inputs = self.shape
        part = {}
        for key, tensor in self._by_row.items():
            if key == "weight_global_scale" or tensor.shape[2] == 1:  # the same for all columns
                part[key] = tensor
            else:  # each element is a word of several codes, or the scale of a group
                width = tensor.shape[2]
                part[key] = tensor[:, :, at.start * width // inputs : at.stop * width // inputs]
        return Packed(self.format, (experts, rows, at.stop - at.start), part, self.unpack, self.dtype)

    def _with(self, shape: tuple[int, ...], tensors: Sequence[Tensor]) -> "Packed":
        return Packed(self.format, shape, dict(zip(self.tensors, tensors, strict=True)), self.unpack, self.dtype)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move the tensors without changing their dtype: they hold codes. A new dtype is the one to unpack to."""

        def move(tensor: Tensor) -> Tensor:
            moved: Tensor = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        self.product = self.mixture = None  # they read the tensors where they were
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device=self.device)).dtype
        return super()._apply(move, recurse)  # type: ignore[no-untyped-call]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Implement the torch functions of the plain model; any other function receives the unpacked matrix."""
        implementation = _FUNCTIONS.get(func)
        if implementation is not None:
            return implementation(*args, **(kwargs or {}))
        unpacked = [arg.dense() if isinstance(arg, Packed) else arg for arg in args]
        return func(*unpacked, **(kwargs or {}))


Weight = Tensor | Packed


def _parts(length: int, values: int, most: int, multiple: int) -> list[slice]:
    """Divide `length` rows or columns of `values` values each."""
    step = max(1, most // values // multiple) * multiple
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _linear(input: Tensor, weight: Packed, bias: None = None) -> Tensor:
    if weight.product is not None and not torch.is_grad_enabled():
        return weight.product(input)
    product: Tensor = _Product.apply(input, weight)  # type: ignore[no-untyped-call]
    return product


class _Product(Function):
    """A product whose backward pass unpacks the weight again. Autograd would keep the unpacked one until then."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Packed) -> Tensor:
        ctx.weight = weight
        if len(weight) <= TABLE_ROWS:
            return F.linear(input, weight.dense(input.dtype))
        return torch.cat([F.linear(input, part.dense(input.dtype)) for part in weight.split(TABLE_ROWS)], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _matmul(gradients[0], ctx.weight), None


def _embedding(input: Tensor, weight: Packed, *args: Any, **kwargs: Any) -> Tensor:
    return weight.rows(input)


def _matmul(input: Tensor, other: Packed) -> Tensor:
    if other.mixture is not None and not torch.is_grad_enabled():
        return other.mixture(input)
    if len(other) <= TABLE_ROWS:
        return input @ other.dense(input.dtype)
    parts = zip(input.split(TABLE_ROWS, -1), other.split(TABLE_ROWS), strict=True)
    sums = torch.stack([(part @ table.dense(input.dtype)).float() for part, table in parts])
    return sums.sum(0).to(input.dtype)


_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    F.linear: _linear,
    F.embedding: _embedding,
    torch.matmul: _matmul,
    torch.unbind: Packed.unbind,
}
