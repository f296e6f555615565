"""Products with packed weights: the kernels, called with tensors.

T tokens, K experts per token, R = T·K pairs of a token and its expert, sorted by expert, I inputs, O outputs,
E experts, G experts with tokens.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gesso.backends.cpu import threads
from gesso.backends.cpu.kernels import few_rows, many_rows, rounding
from gesso.backends.cpu.kernels.rounding import BLOCK, GROUP, ROW_BLOCK_BYTES
from gesso.backends.cpu.kernels.tiles import ROW_GROUP_BYTES
from gesso.checkpoint.quantize.packed import Packed

# By format: the tensor that holds the codes, and the kernels for few and for many rows, each with its rounding.
FORMATS = {
    "int4": (
        "weight_packed",
        (rounding.round_few_int4, few_rows.multiply_few_int4),
        (rounding.round_many_int4, many_rows.multiply_many_int4),
    ),
    "int8": (
        "weight",
        (rounding.round_few_int8, few_rows.multiply_few_int8),
        (rounding.round_many_int8, many_rows.multiply_many_int8),
    ),
}
BITS = {"int4": 4, "int8": 8}
MANY = 4  # rows per matrix from which rearranging its weights takes less time than reading them again for each row
ROUNDED_AT_ONCE = 16  # rows; fewer are not worth waking a thread


@dataclass(frozen=True)
class Pairs:
    """The rows of a grouped product, sorted by expert: int64 tensors."""

    source_R: Tensor  # the row of the input
    expert_G: Tensor
    end_G: Tensor  # the row after each expert's last one


@dataclass(frozen=True, eq=False)
class PackedMatrix:
    """A packed matrix [O, I], or experts [E, O, I], that rows can be multiplied by: `matrix(x)`."""

    format: str
    codes: Tensor
    scales: Tensor
    outputs: int
    inputs: int

    @classmethod
    def of(cls, weight: Packed) -> "PackedMatrix":
        tensors = weight.tensors
        codes, scales = tensors[FORMATS[weight.format][0]], tensors["weight_scale"]
        assert codes.is_contiguous() and scales.is_contiguous()
        return cls(weight.format, codes, scales, *weight.shape[-2:])

    def __call__(self, x: Tensor) -> Tensor:
        assert x.shape[-1] == self.inputs
        return self.grouped(x, _all_rows(x.numel() // self.inputs)).view(*x.shape[:-1], self.outputs).to(x.dtype)

    def numbers(self) -> Tensor:
        """Return the matrix as kernels with several products expect it: see `kernels/matrices.py`."""
        addresses = self.codes.data_ptr(), self.scales.data_ptr()
        return torch.tensor([*addresses, self.outputs, self.inputs, BITS[self.format]])

    def grouped(self, x: Tensor, pairs: Pairs) -> Tensor:
        """Return the products [R, O], in float32, of rows [..., I] and the matrices of their experts."""
        rows, experts = pairs.source_R.shape[0], pairs.expert_G.shape[0]
        is_few = rows < MANY * experts
        x_rounded = rounded(x, self.inputs, self.format, is_few)
        y_RO = torch.empty(rows, self.outputs)
        used = threads.count(experts * -(-self.outputs // few_rows.OUTPUTS))
        space = None if is_few else torch.empty(used * many_rows.SPACE_BYTES, dtype=torch.uint8)
        threads.run(
            FORMATS[self.format][1 if is_few else 2][1], x_rounded.data_ptr(), pairs.source_R.data_ptr(),
            self.codes.data_ptr(), self.scales.data_ptr(), self.inputs, self.outputs, y_RO.data_ptr(), experts,
            pairs.expert_G.data_ptr(), pairs.end_G.data_ptr(), 0, 0 if space is None else space.data_ptr(),
            threads=used,
        )  # fmt: skip
        return y_RO


@lru_cache(maxsize=64)
def _all_rows(count: int) -> Pairs:
    return Pairs(torch.arange(count), torch.zeros(1, dtype=torch.int64), torch.tensor([count]))


# Queries, keys and values are products of the same rows, and so are gates and ups: what was rounded last is kept. The
# version of a tensor counts the changes to it.
_last: tuple[Tensor, tuple[object, ...], Tensor] | None = None


def rounded(x: Tensor, inputs: int, format: str, is_few: bool) -> Tensor:
    """Return rows in the layout of the kernels for few or for many rows."""
    global _last
    last, key = _last, (format, is_few, None if x.is_inference() else x._version)
    if last is not None and last[0] is x and last[1] == key and key[2] is not None:
        return last[2]
    x_TI = x.reshape(-1, inputs).float().contiguous()
    tokens = x_TI.shape[0]
    size = -(-inputs // BLOCK) * ROW_BLOCK_BYTES if is_few else inputs // GROUP * ROW_GROUP_BYTES
    result = torch.empty(tokens, size, dtype=torch.uint8)
    threads.run(
        FORMATS[format][1 if is_few else 2][0], x_TI.data_ptr(), tokens, inputs, result.data_ptr(),
        threads=threads.count(tokens // ROUNDED_AT_ONCE),
    )  # fmt: skip
    _last = x, key, result
    return result
