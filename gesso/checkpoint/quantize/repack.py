"""Convert matrices from the formats of other tools to those that the GPU kernels run.

The kernels run experts in bfloat16, fp8, int4, uint4 and nvfp4, and all other matrices in bfloat16 and fp8. Readers
choose the target that represents the source exactly, or else the nearest one. Experts are converted one by one, so that
little memory is needed in addition to the result.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from gesso.checkpoint.quantize import fp8, int4, matrices, nvfp4, uint4
from gesso.checkpoint.quantize.codes import e8m0, pack_nibbles
from gesso.checkpoint.quantize.formats import FORMATS
from gesso.checkpoint.quantize.matrices import Tensors
from gesso.checkpoint.quantize.packed import Packed


def to_fp8(packed: Packed) -> Packed:
    """Return a matrix, or experts, of any format in FP8 with one scale per row.

    An e4m3 value has four significant bits: the error is at most 1/16 of a value, and about 2.6 % by root mean square.
    """
    format = FORMATS["fp8"]
    if len(packed.shape) == 2:
        blocks = [format.pack(rows.dense(torch.float32)) for rows in packed.split(matrices.ROWS)]
        tensors = {key: torch.cat([block[key] for block in blocks]) for key in blocks[0]}
    else:
        experts = [format.pack(expert.dense(torch.float32)) for expert in packed.unbind()]
        tensors = {key: torch.stack([expert[key] for expert in experts]) for key in experts[0]}
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


# --- powers of two as scales --------------------------------------------------------------------------------------

_TOP, _SPAN = 8, 17  # powers of two in e4m3: from 2^8 down to 2^-9


def to_nvfp4(code_OI: Tensor, exponent_OG: Tensor) -> Tensors:
    """Return NVFP4 from e2m1 codes 0..15, and a scale 2^(exponent - 127) per 32 values.

    Exact if the scales of the matrix, blocks of zeros aside, span 2^17 or less: the largest becomes 2^8 in e4m3. Values
    of smaller blocks are rounded to multiples of half the smallest scale. That is an error of at most 2^-18 of the
    largest value of the matrix, far less than if all values were converted to FP8.
    """
    magnitude_OGN = (code_OI & 7).unflatten(-1, (exponent_OG.shape[-1], -1))
    used_OG = (magnitude_OGN > 0).any(-1)
    # At least 8, so that the global scale is finite.
    top = torch.where(used_OG, exponent_OG.int(), 0).amax().clamp(min=_TOP)
    below_OG = torch.where(used_OG, top - exponent_OG.int(), 0)
    # nearest[n, code]: the code of the value that is nearest to 2^-n of the value of `code`.
    values = torch.tensor(nvfp4.VALUES, device=code_OI.device)
    smaller = torch.stack([values / 2**n for n in range(6)])
    nearest = (smaller[..., None] - values).abs().argmin(-1).to(torch.uint8)
    shift_OG = (below_OG - _SPAN).clamp(0, 5)  # 2^-5 of any value is nearest to zero
    rounded_OI = nearest[shift_OG[..., None], magnitude_OGN.int()].flatten(-2)
    return {
        "weight_packed": pack_nibbles(rounded_OI | code_OI & 8).view(torch.uint8),
        "weight_scale": e8m0(127 + _TOP - below_OG.clamp(max=_SPAN)).repeat_interleave(2, -1).to(torch.float8_e4m3fn),
        "weight_global_scale": e8m0(254 + _TOP - top).reshape(1),
    }


def to_fp8_by_powers_of_two(packed: Packed) -> Packed:
    """Return a matrix, or experts, in FP8 with a power of two as the scale of each row; for values that are e2m1 or
    e4m3 numbers times powers of two.

    Such values are exact down to 2^-13 of the largest of their row. The error of smaller ones is at most 2^-17 of it.
    """
    tensors = [
        _by_power_of_two(part) for part in (packed.split(matrices.ROWS) if len(packed.shape) == 2 else packed.unbind())
    ]
    join = torch.cat if len(packed.shape) == 2 else torch.stack
    return repacked("fp8", packed, {key: join([one[key] for one in tensors]) for key in tensors[0]})


def _by_power_of_two(packed: Packed) -> Tensors:
    weight_OI = packed.dense(torch.float32)
    top_O1 = weight_OI.abs().amax(-1, keepdim=True)
    fraction_O1, exponent_O1 = torch.frexp(top_O1 / top_O1.new_tensor(fp8.LARGEST))
    exponent_O1 = exponent_O1 - (fraction_O1 <= 0.5).int()  # the smallest with which the largest value fits
    scale_O1 = e8m0((exponent_O1 + 127).clamp(1, 254))
    return {"weight": (weight_OI / scale_O1).to(torch.float8_e4m3fn), "weight_scale": scale_O1}
