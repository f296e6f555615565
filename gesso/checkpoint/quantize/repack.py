"""Convert matrices from the formats of other tools to those that the GPU kernels run.

The kernels run experts in bfloat16, fp8, int4, uint4 and nvfp4, and all other matrices in bfloat16 and fp8. Readers
choose the target that represents the source exactly, or else the nearest one. Experts are converted one by one, so that
little memory is needed beside the result.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from gesso.checkpoint.quantize import fp8, int4, uint4
from gesso.checkpoint.quantize.formats import FORMATS
from gesso.checkpoint.quantize.matrices import Tensors
from gesso.checkpoint.quantize.packed import Packed


def to_fp8(packed: Packed) -> Packed:
    """Return a matrix, or experts, of any format in FP8 with one scale per row.

    An e4m3 value has four significant bits: the error is at most 1/16 of a value, and about 2.6 % by root mean square.
    """
    format = FORMATS["fp8"]
    if len(packed.shape) == 2:
        each = [format.pack(rows.dense(torch.float32)) for rows in packed.split(fp8.ROWS)]
        tensors = {key: torch.cat([one[key] for one in each]) for key in each[0]}
    else:
        each = [format.pack(expert.dense(torch.float32)) for expert in packed.unbind()]
        tensors = {key: torch.stack([one[key] for one in each]) for key in each[0]}
    return repacked("fp8", packed, tensors)


def to_dense(packed: Packed) -> Tensor:
    """Return the matrix itself, in the dtype of the model."""
    return packed.dense()


def repacked(format: str, source: Packed, tensors: Mapping[str, Tensor]) -> Packed:
    """Return the same matrix, or experts, as tensors of another format."""
    result = FORMATS[format].packed(source.shape, tensors)
    result.dtype = source.dtype
    return result


# --- four-bit integers --------------------------------------------------------------------------------------------


def to_int4(words: Tensor, scale: Tensor) -> Tensors:
    """Return int4 from nibbles [..., O, I / 8] and scales [..., O, G] of I / G values each, a multiple of 32.

    Nibbles and bfloat16 scales are exact. Other scales are rounded: the error is at most 2^-8 of a value.
    """
    *rows, width = words.shape
    return {
        "weight_packed": words,
        "weight_scale": scale.bfloat16().repeat_interleave(8 * width // int4.GROUP // scale.shape[-1], -1),
        "weight_shape": torch.tensor((rows[-1], 8 * width), device=words.device).repeat(*rows[:-1], 1),
    }


def to_uint4(words: Tensor, scale: Tensor, offset: Tensor) -> Tensors:
    """Return uint4 from nibbles [..., O, I / 8], and scales and offsets [..., O, G] of I / G values each, a multiple
    of 32.

    Nibbles and bfloat16 scales and offsets are exact. Other scales and offsets are rounded: the error is at most
    2^-8 · (15 · |scale| + |offset|).
    """
    pair = torch.stack((scale, offset), -1).bfloat16()
    groups = 8 * words.shape[-1] // uint4.GROUP
    return {"weight_packed": words, "weight_scale_offset": pair.repeat_interleave(groups // scale.shape[-1], -2)}
