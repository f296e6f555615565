"""Unpack whole quantized matrices, for training: a product of thousands of tokens reads each weight many times.

`unpack` in the modules of `gesso/checkpoint/quantize` is the specification. It holds several float32 copies of the
matrix, which for the experts of a 26B layer would take gigabytes; these kernels write the result and nothing else. Both
are memory-bound.

E experts, O outputs, I inputs, B bytes of two values each.
"""

from collections.abc import Mapping
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from gesso.checkpoint.quantize.packed import Packed

# The tensor of each format that holds the scales.
SCALES = {
    "fp8": "weight_scale", "int4": "weight_scale", "uint4": "weight_scale_offset", "nvfp4": "weight_scale",
}  # fmt: skip


def use_kernels(model: nn.Module, dtype: torch.dtype) -> None:
    """Let all quantized matrices of a model on a GPU unpack to `dtype` with these kernels."""
    for module in model.modules():
        if isinstance(module, Packed) and module.format in SCALES:
            module.unpack = partial(widened, format=module.format, dtype=dtype)


def widened(tensors: Mapping[str, Tensor], format: str, dtype: torch.dtype) -> Tensor:
    """Return the matrix, or all experts' matrices, in `dtype`."""
    codes = tensors["weight" if format == "fp8" else "weight_packed"]
    codes = codes.contiguous().view(torch.uint8 if format != "fp8" else codes.dtype)
    *lead, size = codes.shape
    out = torch.empty(*lead, size if format == "fp8" else 2 * size, device=codes.device, dtype=dtype)
    rows, scale = codes[..., 0].numel(), tensors[SCALES[format]].contiguous()
    if format == "fp8":
        _widen_fp8[(rows,)](codes, scale, out, size, BLOCK=triton.next_power_of_2(size), num_warps=4)
        return out
    divisor = tensors["weight_global_scale"].contiguous() if format == "nvfp4" else None
    _widen[(rows,)](
        codes, scale, divisor, out, 1 if divisor is None else rows // divisor.numel(), size,
        GROUP=8 if format == "nvfp4" else 16, FORMAT=format, BLOCK=triton.next_power_of_2(size), num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _widen_fp8(code_ptr, scale_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """Widen one row. Grid: (E O,). code and out are [E, O, I], scale is [E, O]."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    at = row.to(tl.int64) * size + column
    value = tl.load(code_ptr + at, mask=column < size, other=0.0).to(tl.float32) * tl.load(scale_ptr + row)
    tl.store(out_ptr + at, value.to(out_ptr.dtype.element_ty), mask=column < size)


@triton.jit
def _widen(
    byte_ptr, scale_ptr, divisor_ptr, out_ptr, rows_of_divisor, size,
    GROUP: tl.constexpr, FORMAT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Widen one row. Grid: (E O,). byte is [E, O, B], out [E, O, 2 B].

    GROUP bytes share a scale. uint4: scale holds pairs of scale and offset. NVFP4: as many rows as `rows_of_divisor`
    share the scale at divisor, by which scales are divided.
    """
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    inside = place < size
    byte = tl.load(byte_ptr + row.to(tl.int64) * size + place, mask=inside, other=0)
    low, high = byte & 15, byte >> 4
    group = row.to(tl.int64) * (size // GROUP) + place // GROUP
    if FORMAT == "uint4":
        scale = tl.load(scale_ptr + 2 * group, mask=inside, other=0.0).to(tl.float32)
        offset = tl.load(scale_ptr + 2 * group + 1, mask=inside, other=0.0).to(tl.float32)
        pair = tl.join(low.to(tl.float32) * scale + offset, high.to(tl.float32) * scale + offset)
    elif FORMAT == "int4":
        scale = tl.load(scale_ptr + group, mask=inside, other=0.0).to(tl.float32)
        pair = tl.join((low.to(tl.float32) - 8.0) * scale, (high.to(tl.float32) - 8.0) * scale)
    else:
        scale = tl.load(scale_ptr + group, mask=inside, other=0.0).to(tl.float32)
        scale = scale / tl.load(divisor_ptr + row // rows_of_divisor)
        pair = tl.join(_e2m1(low) * scale, _e2m1(high) * scale)
    column = tl.arange(0, 2 * BLOCK)
    out_at = out_ptr + row.to(tl.int64) * 2 * size + column
    tl.store(out_at, pair.reshape((2 * BLOCK,)).to(out_ptr.dtype.element_ty), mask=column < 2 * size)


@triton.jit
def _e2m1(half):
    """Return the number: exponent and mantissa bits at their places in a float16 read as it times 2^-14."""
    bits = ((half & 7).to(tl.uint16) << 9) | ((half & 8).to(tl.uint16) << 12)
    return bits.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0
