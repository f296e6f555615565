"""Products with packed weights: the kernels of `kernels.py`, called with tensors.

T tokens, K experts per token, R = T·K pairs of a token and its expert, sorted by expert, I inputs, O outputs,
E experts, G experts with tokens.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from gesso.backends.cpu import kernels, threads
from gesso.backends.cpu.kernels import BLOCK, GROUP, OUTPUTS, ROW_BLOCK_BYTES, SPACE_BYTES
from gesso.backends.cpu.tiles import ROW_GROUP_BYTES
from gesso.checkpoint.quantize.packed import Packed

# By format: the tensor that holds the codes, and the kernels for few and for many rows, each with its rounding.
FORMATS = {
    "int4": (
        "weight_packed",
        (kernels.round_few_int4, kernels.multiply_few_int4),
        (kernels.round_many_int4, kernels.multiply_many_int4),
    ),
    "int8": (
        "weight",
        (kernels.round_few_int8, kernels.multiply_few_int8),
        (kernels.round_many_int8, kernels.multiply_many_int8),
    ),
}
MANY = 4  # rows per matrix from which rearranging its weights takes less time than reading them again for each row
ROUNDED_AT_ONCE = 16  # rows; fewer are not worth waking a thread


@dataclass(frozen=True)
class Pairs:
    """The rows of a grouped product, sorted by expert: int64 tensors."""

    source_R: Tensor  # the row of the input
    expert_G: Tensor
    end_G: Tensor  # the row after each expert's last one


@dataclass(frozen=True, eq=False)
class Matrix:
    """A packed matrix [O, I], or experts [E, O, I], that rows can be multiplied by: `matrix(x)`."""

    format: str
    codes: Tensor
    scales: Tensor
    outputs: int
    inputs: int

    @classmethod
    def of(cls, weight: Packed) -> "Matrix":
        tensors = weight.tensors
        codes, scales = tensors[FORMATS[weight.format][0]], tensors["weight_scale"]
        assert codes.is_contiguous() and scales.is_contiguous()
        return cls(weight.format, codes, scales, *weight.shape[-2:])

    def __call__(self, x: Tensor) -> Tensor:
        x_TI = x.reshape(-1, self.inputs)
        return self.grouped(x_TI, _all_rows(len(x_TI))).view(*x.shape[:-1], self.outputs).to(x.dtype)

    def grouped(self, x_TI: Tensor, pairs: Pairs) -> Tensor:
        """Return the products [R, O], in float32, of rows and the matrices of their experts."""
        x_TI = x_TI.float().contiguous()
        tokens, rows, experts = len(x_TI), len(pairs.source_R), len(pairs.expert_G)
        y_RO = torch.empty(rows, self.outputs)
        _, few, many = FORMATS[self.format]
        is_few = rows < MANY * experts
        round_rows, multiply = few if is_few else many
        size = -(-self.inputs // BLOCK) * ROW_BLOCK_BYTES if is_few else self.inputs // GROUP * ROW_GROUP_BYTES
        rounded = torch.empty(tokens, size, dtype=torch.uint8)
        threads.run(
            round_rows, x_TI.data_ptr(), tokens, self.inputs, rounded.data_ptr(),
            threads=threads.count(tokens // ROUNDED_AT_ONCE),
        )  # fmt: skip
        used = threads.count(experts * -(-self.outputs // OUTPUTS))
        space = torch.empty(0 if is_few else used * SPACE_BYTES, dtype=torch.uint8)
        threads.run(
            multiply, rounded.data_ptr(), pairs.source_R.data_ptr(), self.codes.data_ptr(), self.scales.data_ptr(),
            self.inputs, self.outputs, y_RO.data_ptr(), experts, pairs.expert_G.data_ptr(), pairs.end_G.data_ptr(),
            0, space.data_ptr(), threads=used,
        )  # fmt: skip
        return y_RO


@cache
def _all_rows(count: int) -> Pairs:
    return Pairs(torch.arange(count), torch.zeros(1, dtype=torch.int64), torch.tensor([count]))
