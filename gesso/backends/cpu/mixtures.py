"""Weighted sums of the rows of a packed table: the expected embedding of a prediction.

T tokens, V vocabulary, H hidden, R rows of the table that are used.
"""

import torch
from torch import Tensor

from gesso.backends.cpu import threads
from gesso.backends.cpu.kernels.unpacking import unpack
from gesso.backends.cpu.products import PackedMatrix

ROWS = 256  # unpacked at once: 3 MB for the 26B, which stay in a cache
# A weight below this part of the largest one of its token is left out. All of a vocabulary of 2^18 together are below
# the rounding of float32. A prediction has few others, once the model is certain.
LEAST = 2.0**-42


def mixture(table: PackedMatrix, weight_TV: Tensor) -> Tensor:
    """Return the sums [T, H] of rows, of which only those with some weight are unpacked."""
    size_TV = weight_TV.abs()
    is_small_TV = size_TV <= size_TV.amax(-1, keepdim=True) * LEAST  # NaN is not
    index_R = is_small_TV.all(0).logical_not_().nonzero().squeeze(-1)
    sum_TH, numbers = torch.zeros(len(weight_TV), table.inputs), table.numbers()
    for part_R in index_R.split(ROWS):
        rows_RH = torch.empty(len(part_R), table.inputs)
        threads.run(
            unpack, numbers.data_ptr(), part_R.data_ptr(), len(part_R), rows_RH.data_ptr(),
            threads=threads.count(len(part_R) // 16),
        )  # fmt: skip
        sum_TH.addmm_(weight_TV[:, part_R].float(), rows_RH)
    return sum_TH.to(weight_TV.dtype)
