"""Unpack the blocks of quantized GGUF tensors to float32, bit for bit as `gguf.quants.dequantize` (version 0.19.0).

A row of values is a row of blocks of 32, 64 or 256 values. d and m are float16; n is a code.

    Q4_0    d, 16 bytes of codes                       d · (n - 8)
    Q5_0    d, 32 high bits, 16 bytes                  d · (n - 16)
    Q5_1    d, m, 32 high bits, 16 bytes               d · n + m
    Q8_0    d, 32 int8                                 d · n
    IQ4_NL  as Q4_0                                    d · NONLINEAR[n]
    MXFP4   exponent e, 16 bytes                       e2m1[n] · 2^(e - 127)
    NVFP4   4 scales s, 4 x 8 bytes                    e2m1[n] · s, s an unsigned e4m3 number per 16 values
    Q4_K    d, dmin, 12 bytes of s and m, 128 bytes    d · s · n - dmin · m, s and m 6 bits per 32 values
    Q5_K    Q4_K with 32 bytes of high bits            the same
    Q6_K    128 bytes, 64 of high bits, 16 s, d        d · s · (n - 32), s int8 per 16 values

In blocks of 32, the low half of byte j is the code of value j and the high half that of value j + 16. In the others,
low halves come first within the bytes named at each function. G blocks of a row, N values per block, S sub-blocks.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from gesso.checkpoint.gguf.types import TYPES

NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def unpack(type: str, raw: Tensor) -> Tensor:
    """Return rows of blocks, uint8 [..., bytes], as float32 [..., values]."""
    return _UNPACK[type](split(type, raw)).flatten(-2)


def split(type: str, raw: Tensor) -> Tensor:
    """Return rows of bytes as blocks [..., G, bytes]."""
    return raw.unflatten(-1, (-1, TYPES[type].bytes))


# Bytes of a block at which float16 numbers are.
_HALVES = {
    "Q4_0": (0,), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ4_NL": (0,),
}  # fmt: skip


def is_finite(type: str, raw: Tensor) -> bool:
    """Return whether all values of these blocks are finite, which their scales decide."""
    block = split(type, raw)
    if type == "MXFP4":
        return not (block[..., 0] == 255).any()
    return all(bool(half(block, at).isfinite().all()) for at in _HALVES.get(type, ()))


# --- parts of blocks ----------------------------------------------------------------------------------------------


def half(block: Tensor, at: int) -> Tensor:
    """Return the float16 number at this byte as float32 [..., G, 1]."""
    return block[..., at : at + 2].contiguous().view(torch.float16).float()


def nibbles(byte: Tensor, run: int) -> Tensor:
    """Return four-bit codes: within each run of bytes, all low halves, then all high halves."""
    byte = byte.unflatten(-1, (-1, run))
    return torch.stack((byte & 15, byte >> 4), -2).flatten(-3)


def bits(byte: Tensor, run: int, width: int) -> Tensor:
    """Return codes of `width` bits: within each run of bytes, the lowest bits of all, then the next higher ones."""
    shift = torch.arange(0, 8, width, dtype=torch.uint8, device=byte.device)
    return (byte.unflatten(-1, (-1, 1, run)) >> shift[:, None] & (1 << width) - 1).flatten(-3)


def scales_and_mins(block: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eight 6-bit scales and minima [..., G, 8] in bytes 4 to 15 of a K block.

    The first four of each are the low 6 bits of 4 bytes. The others have their low 4 bits in the last 4 bytes, and
    their high 2 bits above the 6 bits of the first four.
    """
    scale, minimum, both = block[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    return (
        torch.cat((scale & 63, both & 15 | scale >> 6 << 4), -1),
        torch.cat((minimum & 63, both >> 4 | minimum >> 6 << 4), -1),
    )


# --- types --------------------------------------------------------------------------------------------------------


def _q4_0(block: Tensor) -> Tensor:
    return half(block, 0) * (nibbles(block[..., 2:], 16).to(torch.int8) - 8).float()


def _five_bits(block: Tensor, at: int) -> Tensor:
    """Return 5-bit codes: 4 bytes of high bits, one bit per value in order, then 16 bytes of low halves."""
    shift = torch.arange(8, dtype=torch.uint8, device=block.device)
    high = (block[..., at : at + 4, None] >> shift & 1).flatten(-2)
    return nibbles(block[..., at + 4 :], 16) | high << 4


def _q5_0(block: Tensor) -> Tensor:
    return half(block, 0) * (_five_bits(block, 2).to(torch.int8) - 16).float()


def _q5_1(block: Tensor) -> Tensor:
    return half(block, 0) * _five_bits(block, 4).float() + half(block, 2)


def _q8_0(block: Tensor) -> Tensor:
    return half(block, 0) * block[..., 2:].view(torch.int8).float()


def _iq4_nl(block: Tensor) -> Tensor:
    values = torch.tensor(NONLINEAR, dtype=torch.float32, device=block.device)
    return half(block, 0) * values[nibbles(block[..., 2:], 16).int()]


def _mxfp4(block: Tensor) -> Tensor:
    # Half of 2^(e - 127), from bits: below e = 2 it is subnormal. The values are doubled in turn.
    e = block[..., :1].int()
    scale = torch.where(e < 2, 0x0020_0000 << e, (e - 1) << 23).view(torch.float32)
    return scale * (2 * _e2m1(nibbles(block[..., 1:], 16)))


def _nvfp4(block: Tensor) -> Tensor:
    value = _e2m1(nibbles(block[..., 4:], 8)).unflatten(-1, (4, 16))
    return (e4m3(block[..., :4]).float()[..., None] * value).flatten(-2)


def e4m3(byte: Tensor) -> Tensor:
    """Return unsigned e4m3 scales as torch's signed type. The one NaN counts as zero."""
    return torch.where(byte == 0x7F, torch.zeros_like(byte), byte).view(torch.float8_e4m3fn)


def _e2m1(code: Tensor) -> Tensor:
    return torch.tensor(E2M1, device=code.device)[code.int()]


def _q4_k(block: Tensor) -> Tensor:
    return _affine(block, nibbles(block[..., 16:], 32))


def _q5_k(block: Tensor) -> Tensor:
    return _affine(block, nibbles(block[..., 48:], 32) | bits(block[..., 16:48], 32, 1) << 4)


def _affine(block: Tensor, code: Tensor) -> Tensor:
    scale, minimum = k_scales(block)
    return (scale[..., None] * code.unflatten(-1, (8, 32)).float() - minimum[..., None]).flatten(-2)


def k_scales(block: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and minimum of the sub-blocks of a K block, float32 [..., G, 8]. Both products are exact."""
    scale, minimum = scales_and_mins(block)
    return half(block, 0) * scale.float(), half(block, 2) * minimum.float()


def _q6_k(block: Tensor) -> Tensor:
    code = nibbles(block[..., :128], 64) | bits(block[..., 128:192], 32, 2) << 4
    scale = half(block, 208) * block[..., 192:208].view(torch.int8).float()
    return (scale[..., None] * (code.to(torch.int8) - 32).float().unflatten(-1, (16, 16))).flatten(-2)


def _float(block: Tensor, dtype: torch.dtype) -> Tensor:
    return block.contiguous().view(dtype).float()


_UNPACK: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "F32": partial(_float, dtype=torch.float32),
        "F16": partial(_float, dtype=torch.float16),
        "BF16": partial(_float, dtype=torch.bfloat16),
        "Q4_0": _q4_0,
        "Q5_0": _q5_0,
        "Q5_1": _q5_1,
        "Q8_0": _q8_0,
        "Q4_K": _q4_k,
        "Q5_K": _q5_k,
        "Q6_K": _q6_k,
        "IQ4_NL": _iq4_nl,
        "MXFP4": _mxfp4,
        "NVFP4": _nvfp4,
    }
)
