"""Round weights to GGUF blocks: Q8_0, Q4_0, Q5_0, Q4_K and Q6_K, whose layouts are in `blocks`.

Scales are chosen by squared error. A block of Q4_0 or Q5_0, and a group of Q6_K, tries four scales, which map its
largest value (with its sign) to the numbers below; the grid has one more negative value, so the scale may be negative.
The best sets of four for normal values lower the error by 4 %, and by 8 % for Q6_K, against the first alone. A group of
Q4_K has a scale and a minimum: five roundings are tried, each with the scale and minimum that fit it best. Scales are
rounded to what is stored before the codes are computed. O out, I in, G blocks of a row, S groups of a block, N values.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from gesso.checkpoint.gguf.types import FLOATS, TYPES
from gesso.checkpoint.quantize.matrices import Tensors, best_scale, check, each
from gesso.errors import InputError

LARGEST, SMALLEST = 65504.0, 2.0**-24  # of float16
TARGETS = {4: (-8.0, -7.0, -7.5, -8.5), 5: (-16.0, -15.0, -15.5, -16.5), 6: (-32.0, -30.0, -31.0, -32.5)}  # by bits
SPREADS = (15.0, 14.0, 14.5, 15.5, 16.0)  # steps from the smallest to the largest value of a Q4_K group
ROWS = 2048  # of a matrix at once; all embeddings of the 26B would take 3 GB in float32


def pack(type: str, weight: Tensor) -> Tensor:
    """Return a matrix [O, I], or experts [E, O, I], as rows of bytes of this type."""
    if type in FLOATS:
        return _floats(weight, {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[type])
    check(weight.shape, TYPES[type].values)
    parts = [
        each(partial(_rows, type), part)["blocks"] for part in weight.split(ROWS if weight.ndim == 2 else len(weight))
    ]
    return torch.cat(parts)


def _floats(weight: Tensor, dtype: torch.dtype) -> Tensor:
    rounded = weight.detach().to(dtype).contiguous()
    if not rounded.isfinite().all():
        raise InputError(f"it contains values that {dtype} cannot represent")
    return rounded.view(torch.uint8)


def _rows(type: str, weight_OI: Tensor) -> Tensors:
    block_OGN = weight_OI.unflatten(1, (-1, TYPES[type].values))
    return {"blocks": _PACK[type](block_OGN).flatten(1)}


# --- parts of blocks ----------------------------------------------------------------------------------------------


def _stored(scale: Tensor) -> Tensor:
    """Return a scale as float16 stores it, in float32. It is never zero: codes are divided by it."""
    rounded = scale.clamp(-LARGEST, LARGEST).half().float()
    return torch.where(rounded == 0, SMALLEST, rounded)


def _half(scale: Tensor) -> Tensor:
    """Return the bytes of a scale [..., 1]."""
    return scale.half().view(torch.uint8)


def _nibbles(code: Tensor, run: int) -> Tensor:
    """Return bytes of four-bit codes: within each run of bytes, the first codes are the low halves."""
    low, high = code.unflatten(-1, (-1, 2, run)).unbind(-2)
    return (low & 15 | (high & 15) << 4).flatten(-2)


def _symmetric(x: Tensor, width: int) -> Tensor:
    """Return for each group of x [..., N] the best of a few scales [..., 1] for codes of `width` bits with a sign."""
    largest = x.gather(-1, x.abs().argmax(-1, keepdim=True))
    return best_scale(x, (_stored(largest / target) for target in TARGETS[width]), partial(_round, width=width))


def _round(scaled: Tensor, width: int) -> Tensor:
    half = 1 << width - 1
    return scaled.round().clamp_(-half, half - 1)


def _codes(x: Tensor, scale: Tensor, width: int) -> Tensor:
    return (_round(x / scale, width) + (1 << width - 1)).to(torch.uint8)


# --- types --------------------------------------------------------------------------------------------------------


def _q8_0(x_OGN: Tensor) -> Tensor:
    scale_OG1 = _stored(x_OGN.abs().amax(-1, keepdim=True) / 127)
    code_OGN = (x_OGN / scale_OG1).round().clamp_(-127, 127).to(torch.int8)
    return torch.cat((_half(scale_OG1), code_OGN.view(torch.uint8)), -1)


def _q4_0(x_OGN: Tensor) -> Tensor:
    scale_OG1 = _symmetric(x_OGN, 4)
    return torch.cat((_half(scale_OG1), _nibbles(_codes(x_OGN, scale_OG1, 4), 16)), -1)


def _q5_0(x_OGN: Tensor) -> Tensor:
    scale_OG1 = _symmetric(x_OGN, 5)
    code_OGN = _codes(x_OGN, scale_OG1, 5)
    shift = torch.arange(8, dtype=torch.uint8, device=code_OGN.device)
    high_OG4 = (code_OGN.unflatten(-1, (4, 8)) >> 4 << shift).sum(-1, dtype=torch.uint8)
    return torch.cat((_half(scale_OG1), high_OG4, _nibbles(code_OGN, 16)), -1)


def _q6_k(x_OGN: Tensor) -> Tensor:
    x_OGSN = x_OGN.unflatten(-1, (16, 16))
    exact_OGS = _symmetric(x_OGSN, 6).squeeze(-1)
    scale_OG1 = _stored(exact_OGS.abs().amax(-1, keepdim=True) / 127)
    factor_OGS = (exact_OGS / scale_OG1).round().clamp_(-127, 127)
    # A factor of zero: all values of the group are tiny against those of others, and become zero.
    group_OGS1 = torch.where(factor_OGS == 0, torch.inf, scale_OG1 * factor_OGS)[..., None]
    code_OGN = _codes(x_OGSN, group_OGS1, 6).flatten(-2)
    pair = code_OGN.unflatten(-1, (2, 4, 32)) >> 4
    high_OGB = (pair[..., 0, :] | pair[..., 1, :] << 2 | pair[..., 2, :] << 4 | pair[..., 3, :] << 6).flatten(-2)
    factors = factor_OGS.to(torch.int8).view(torch.uint8)
    return torch.cat((_nibbles(code_OGN, 64), high_OGB, factors, _half(scale_OG1)), -1)


def _q4_k(x_OGN: Tensor) -> Tensor:
    x_OGSN = x_OGN.unflatten(-1, (8, 32))
    scale_OGS, minimum_OGS = _affine(x_OGSN)
    d_OG1, dmin_OG1 = (_stored(part.amax(-1, keepdim=True) / 63) for part in (scale_OGS, minimum_OGS))
    s_OGS, m_OGS = (scale_OGS / d_OG1).round().clamp_(0, 63), (minimum_OGS / dmin_OG1).round().clamp_(0, 63)
    group_OGS1 = torch.where(s_OGS == 0, torch.inf, d_OG1 * s_OGS)[..., None]
    code_OGSN = ((x_OGSN + (dmin_OG1 * m_OGS)[..., None]) / group_OGS1).round().clamp_(0, 15).to(torch.uint8)
    s, m = s_OGS.to(torch.uint8), m_OGS.to(torch.uint8)
    first = [part[..., :4] | part[..., 4:] >> 4 << 6 for part in (s, m)]
    last = s[..., 4:] & 15 | m[..., 4:] << 4
    return torch.cat((_half(d_OG1), _half(dmin_OG1), *first, last, _nibbles(code_OGSN.flatten(-2), 32)), -1)


def _affine(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and minimum, not negative, for each group of x [..., N]: scale · code - minimum, codes 0 to 15.

    Given codes, the best scale and minimum solve a linear regression of the values on the codes.
    """
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True)
    span = (high - low).clamp(min=1e-30)  # not so small that the inverse is infinite
    count, sum_x = x.shape[-1], x.sum(-1)
    best = least = torch.empty(0)
    for spread in SPREADS:
        code = ((x - low) * (spread / span)).round().clamp_(0, 15)
        sum_n = code.sum(-1)
        sum_nn = code.square().sum(-1)
        sum_xn = (x * code).sum(-1)
        spread_n = count * sum_nn - sum_n.square()
        scale = (count * sum_xn - sum_x * sum_n) / spread_n.clamp(min=1)
        minimum = (sum_n * scale - sum_x) / count
        through_zero = sum_xn / sum_nn.clamp(min=1)  # the best scale if the minimum would be negative
        scale = torch.where(minimum < 0, through_zero, scale).clamp_(min=0)
        minimum = minimum.clamp_(min=0)
        error = (scale[..., None] * code - minimum[..., None] - x).square_().sum(-1)
        fit = torch.stack((scale, minimum))
        best = fit if not best.numel() else torch.where(error < least, fit, best)
        least = error if not least.numel() else torch.minimum(error, least)
    return best[0], best[1]


_PACK: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q5_0": _q5_0, "Q4_K": _q4_k, "Q6_K": _q6_k}
)
