"""Codes of a few bits, as files pack them into bytes.

In all formats here the first value of a row is in the lowest bits of its first byte. Words of 32 bits are
little-endian, so their bytes are in the same order.
"""

import torch
from torch import Tensor

from gesso.checkpoint.quantize.nvfp4 import VALUES


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """Return the codes, uint8 [..., 8 n / bits], of rows of n bytes. Any integer dtype can hold the bytes.

    Eight codes fill `bits` bytes, so n must be a multiple of `bits`, and a code lies in at most two of them.
    """
    byte = packed.view(torch.uint8)
    if bits == 8:
        return byte
    if bits == 4:
        return torch.stack((byte & 15, byte >> 4), -1).flatten(-2)
    group = byte.unflatten(-1, (-1, bits)).to(torch.int32)
    codes = []
    for start in range(0, 8 * bits, bits):
        low, shift = divmod(start, 8)
        word = group[..., low] | (group[..., low + 1] << 8 if low + 1 < bits else 0)
        codes.append(((word >> shift) & (1 << bits) - 1).to(torch.uint8))
    return torch.stack(codes, -1).flatten(-2)


def pack_nibbles(code: Tensor) -> Tensor:
    """Return codes 0..15, uint8 [..., I], as int32 [..., I / 8]: the `weight_packed` of int4 and uint4."""
    return (code[..., 0::2] | (code[..., 1::2] << 4)).view(torch.int32)


def e2m1(code: Tensor) -> Tensor:
    """Return the float32 values of four-bit floating-point codes. Code 8 is -0."""
    values = torch.tensor([*VALUES, *(-v for v in VALUES)], device=code.device)
    return values[code.int()]


def e8m0(exponent: Tensor) -> Tensor:
    """Return the float32 powers of two, 2^(exponent - 127), of uint8 exponents. 0 is the subnormal 2^-127."""
    exponent = exponent.int()
    return torch.where(exponent > 0, exponent << 23, 1 << 22).view(torch.float32)


def scaled(value: Tensor, scale: Tensor) -> Tensor:
    """Multiply values [..., I] by scales [..., G], each of which belongs to I / G values in a row."""
    return (value.unflatten(-1, (scale.shape[-1], -1)) * scale[..., None]).flatten(-2)
