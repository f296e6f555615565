"""Convert matrices from the formats of other tools to those that the GPU kernels run.

The kernels run experts in bfloat16, fp8, int4, uint4 and nvfp4, and all other matrices in bfloat16 and fp8. Readers
choose the target that represents the source exactly, or else the nearest one. Experts are converted one by one, so that
little memory is needed beside the result.
"""

import torch
from torch import Tensor

from gesso.checkpoint.quantize.formats import FORMATS
from gesso.checkpoint.quantize.packed import Packed


def to_fp8(packed: Packed) -> Packed:
    """Return a matrix, or experts, of any format in FP8 with one scale per row.

    An e4m3 value has four significant bits: the error is at most 1/16 of a value, and about 2.6 % by root mean square.
    """
    format = FORMATS["fp8"]
    if len(packed.shape) == 2:
        tensors = format.pack(packed.dense(torch.float32))
    else:
        each = [format.pack(expert.dense(torch.float32)) for expert in packed.unbind()]
        tensors = {key: torch.stack([one[key] for one in each]) for key in each[0]}
    return _packed("fp8", packed, tensors)


def to_dense(packed: Packed) -> Tensor:
    """Return the matrix itself, in the dtype of the model."""
    return packed.dense()


def _packed(format: str, source: Packed, tensors: dict[str, Tensor]) -> Packed:
    result = FORMATS[format].packed(source.shape, tensors)
    result.dtype = source.dtype
    return result
