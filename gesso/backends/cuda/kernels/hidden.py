"""The rows between the two products of the experts: h = gelu(x gate) * (x up), in the form that the second reads.

The first product writes any form, whatever its own weights are. R pairs of a token and its expert, I expert width, B
blocks of columns with a scale.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from gesso.backends.cuda.kernels.linear import FP8


@dataclass(frozen=True)
class Hidden:
    """Rows sorted by expert: plain, in FP8 with one scale per `block` columns, or with their columns interleaved for
    tiles of `interleave` bytes of four-bit weights (`four_bit.py`).
    """

    rows_RI: Tensor
    scale_RB: Tensor | None = None
    block: int = 0
    interleave: int = 0

    def check_block(self, columns: int, product: str) -> None:
        """Reject FP8 rows whose blocks are not the columns that a product computes, or reads, at once."""
        if self.scale_RB is not None and self.block != columns:
            raise ValueError(
                f"the {product} product works on {columns} columns of FP8 rows at once, and these have one scale per "
                f"{self.block}: the columns of the first product's tiles must be the depth of the second's"
            )


def new_plain(pairs: int, width: int, dtype: torch.dtype, device: torch.device) -> Hidden:
    return Hidden(torch.empty(pairs, width, dtype=dtype, device=device))


def new_interleaved(pairs: int, width: int, interleave: int, dtype: torch.dtype, device: torch.device) -> Hidden:
    return Hidden(torch.empty(pairs, width, dtype=dtype, device=device), interleave=interleave)


def new_fp8(pairs: int, width: int, block: int, device: torch.device) -> Hidden:
    scale_RB = torch.empty(pairs, triton.cdiv(width, block), device=device)
    return Hidden(torch.empty(pairs, width, dtype=FP8, device=device), scale_RB, block)
