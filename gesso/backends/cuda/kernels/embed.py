"""Embedded tokens, and the tables of rotary positions: the operations around the layers that are not products.

The plain versions are `SelfConditioning.condition`, `DiffusionGemma.conditioning` and `rotation` in `gesso/model`. Each
kernel replaces five to seven launches.

T tokens, P places of tokens, H hidden, V vocabulary, D head dim, F = D/2 frequencies.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.model.rope import Rotation

WARPS = 8


def conditioned(token_T: Tensor, table_VH: Weight, embed_scale: float, signal_TH: Tensor, eps: float) -> Tensor:
    """Return the norm of the embedded tokens plus the signal of their self-conditioning."""
    out_TH = torch.empty_like(signal_TH)
    width = signal_TH.shape[1]
    _conditioned[(len(token_T),)](
        *(token_T, *_tensors(table_VH), signal_TH, out_TH, embed_scale, width, eps),
        COLUMNS=triton.next_power_of_2(width),
        num_warps=WARPS,
    )
    return out_TH


def with_pins(
    place_T: Tensor, pin_P: Tensor, soft_TH: Tensor, table_VH: Weight, embed_scale: float, out_PH: Tensor
) -> None:
    """Write each soft embedding to its place, or the embedding of the token that is pinned there.

    Places without a pin have a negative number in `pin_P`. Tokens with a negative place are padding.
    """
    width = soft_TH.shape[1]
    _with_pins[(len(place_T),)](
        *(place_T, pin_P, soft_TH, *_tensors(table_VH), out_PH, embed_scale, width),
        COLUMNS=triton.next_power_of_2(width),
        num_warps=WARPS,
    )


def rotation(position_T: Tensor, frequencies_F: Tensor, dtype: torch.dtype) -> Rotation:
    """Return cosine and sine [T, 1, D]: angles in float32, then rounded to the working dtype."""
    tokens, frequencies = len(position_T), len(frequencies_F)
    cos_T1D, sin_T1D = (position_T.new_empty(tokens, 1, 2 * frequencies, dtype=dtype) for _ in range(2))
    _rotation[(tokens,)](
        *(position_T, frequencies_F, cos_T1D, sin_T1D, frequencies),
        COLUMNS=triton.next_power_of_2(frequencies),
        num_warps=4,
    )
    return cos_T1D, sin_T1D


def _tensors(table_VH: Weight) -> tuple[Tensor, Tensor | None]:
    """Return a table and the scales of its rows, if it is FP8."""
    if isinstance(table_VH, Packed):
        return table_VH.tensors["weight"], table_VH.tensors["weight_scale"]
    return table_VH, None


# --- kernels ----------------------------------------------------------------------------------------------------------


@triton.jit
def _embedded(table_VH, scale_V, token, embed_scale, column, width, DTYPE: tl.constexpr):
    """Return one embedded token, rounded to DTYPE after unpacking and after scaling."""
    row = tl.load(table_VH + token * width + column, mask=column < width, other=0.0).to(tl.float32)
    if scale_V is not None:
        row = (row * tl.load(scale_V + token)).to(DTYPE).to(tl.float32)
    return (row * embed_scale).to(DTYPE)


@triton.jit
def _conditioned(
    token_T, table_VH, scale_V, signal_TH, out_TH, embed_scale, width, eps, COLUMNS: tl.constexpr
):  # fmt: skip
    """Embed one token, add its signal, and norm. Grid: (T,). signal and out are [T, H]. Latency-bound."""
    column = tl.arange(0, COLUMNS)
    at = tl.program_id(0).to(tl.int64) * width + column
    dtype: tl.constexpr = out_TH.dtype.element_ty
    token = tl.load(token_T + tl.program_id(0))
    embedded = _embedded(table_VH, scale_V, token, embed_scale, column, width, dtype).to(tl.float32)
    signal = tl.load(signal_TH + at, mask=column < width, other=0.0).to(tl.float32)
    total = (embedded + signal).to(dtype).to(tl.float32)
    normed = total * tl.rsqrt(tl.sum(total * total, 0) / width + eps)
    tl.store(out_TH + at, normed.to(dtype), mask=column < width)


@triton.jit
def _with_pins(place_T, pin_P, soft_TH, table_VH, scale_V, out_PH, embed_scale, width, COLUMNS: tl.constexpr):
    """Copy one soft embedding, or embed the pinned token. Grid: (T,). soft is [T, H], out [P, H]. Latency-bound."""
    column = tl.arange(0, COLUMNS)
    place = tl.load(place_T + tl.program_id(0))
    if place >= 0:
        to = place * width + column
        pin = tl.load(pin_P + place)
        if pin >= 0:
            row = _embedded(table_VH, scale_V, pin, embed_scale, column, width, out_PH.dtype.element_ty)
            tl.store(out_PH + to, row, mask=column < width)
        else:
            at = tl.program_id(0).to(tl.int64) * width + column
            tl.store(out_PH + to, tl.load(soft_TH + at, mask=column < width), mask=column < width)


@triton.jit
def _rotation(position_T, frequency_F, cos_TD, sin_TD, frequencies, COLUMNS: tl.constexpr):
    """Compute cosine and sine of one position. Grid: (T,). cos and sin are [T, 2F], in equal halves. Latency-bound."""
    column = tl.arange(0, COLUMNS)
    inside = column < frequencies
    position = tl.load(position_T + tl.program_id(0)).to(tl.float32)
    angle = position * tl.load(frequency_F + column, mask=inside, other=0.0)
    at = tl.program_id(0).to(tl.int64) * 2 * frequencies + column
    cos, sin = tl.cos(angle).to(cos_TD.dtype.element_ty), tl.sin(angle).to(sin_TD.dtype.element_ty)
    tl.store(cos_TD + at, cos, mask=inside)
    tl.store(cos_TD + at + frequencies, cos, mask=inside)
    tl.store(sin_TD + at, sin, mask=inside)
    tl.store(sin_TD + at + frequencies, sin, mask=inside)
