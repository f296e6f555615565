"""Randomness as a pure function: 32-bit hashes of (seed, canvas, step, position, token), the same on every device.

Integer arithmetic only, in int32 with wrap-around, which torch (CPU and CUDA) and Triton compute to the same bits. The
mixing function is Chris Wellons' `lowbias32` (https://nullprogram.com/blog/2018/07/31/, public domain).

B canvases, C positions of a canvas, V tokens of the vocabulary.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from gesso.diffusion.prediction import argmax

GOLDEN = -1640531527  # 0x9E3779B9 as int32: spreads consecutive numbers over all bits
_M1 = 0x7FEB352D
_M2 = -2073254261  # 0x846CA68B as int32


def _xorshift(x: Tensor, bits: int) -> Tensor:
    # int32 shifts carry the sign in; the mask makes this the logical shift of the definition.
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1).bitwise_xor_(x)


def mix(x: Tensor) -> Tensor:
    """Return the `lowbias32` hash."""
    return _xorshift(_xorshift(_xorshift(x, 16).mul_(_M1), 15).mul_(_M2), 16)


def position_keys(seed: int, canvas: int | Tensor, step: int, stream: int, length: int, device: torch.device) -> Tensor:
    """Return two hashes per position, [C, 2]. `stream` distinguishes the different draws of one step.

    A tensor [B] of several canvases gives [B, C, 2], each as it would be alone.
    """
    words = (*halves(seed), canvas, step, stream)
    numbers, where = [word for word in words if isinstance(word, int)], device
    if len(numbers) < len(words):
        x = torch.arange(2, dtype=torch.int32, device=where) * GOLDEN
        for word in words:
            x = mix(x ^ (word.int()[:, None] if isinstance(word, Tensor) else _int32(word))) + GOLDEN
    else:  # on the host: on a GPU this would take a hundred launches
        where = torch.device("cpu")
        x = torch.tensor([_int32(_hash_of(numbers, half)) for half in range(2)], dtype=torch.int32)
    x = x.unsqueeze(-2)
    position_C1 = torch.arange(length, dtype=torch.int32, device=where)[:, None]
    key_C2 = mix(mix(position_C1 * GOLDEN ^ x) + x.flip(-1))
    return key_C2 if where == device else send(key_C2, device)


def position_tokens(
    seed: int,
    canvas: int | Tensor,
    step: int,
    stream: int,
    length: int,
    limit: int,
    device: torch.device,
) -> Tensor:
    """Return an integer in [0, limit) per position, [C] or [B, C], computed from the first of its two hashes."""
    return below(position_keys(seed, canvas, step, stream, length, device)[..., 0], limit)


def halves(seed: int) -> tuple[int, int]:
    """Return the low and the high 32 bits of a seed."""
    return seed & 0xFFFFFFFF, seed >> 32


def token_hash(key_C2: Tensor, vocab_size: int) -> Tensor:
    """Return a hash [C, V] per token and position: `mix`, with the second half of the key added midway."""
    token_V = torch.arange(vocab_size, dtype=torch.int32, device=key_C2.device) * GOLDEN
    # A shift of a ^ b is the shift of a ^ that of b, so the first one needs no [C, V]. The others work in place, here
    # and below: on a CPU, a new tensor of this size costs more than the arithmetic.
    x = (_xorshift(token_V, 16) ^ _xorshift(key_C2[:, :1], 16)).mul_(_M1).add_(key_C2[:, 1:])
    return _xorshift(_xorshift(x, 15).mul_(_M2), 16)


def uniform(hashes: Tensor) -> Tensor:
    """Return numbers strictly between 0 and 1 from the upper 23 bits, each exact in float32.

    With one more bit the largest would round to 1, and its token would win whatever its logit.
    """
    # The bits become the fraction of a float between 1 and 2. The difference is exact: (bits + 1/2) / 2^23.
    return (hashes >> 9).bitwise_and_(0x7FFFFF).bitwise_or_(0x3F800000).view(torch.float32).sub_(1 - 2.0**-24)


def gumbel(hashes: Tensor) -> Tensor:
    """Return Gumbel noise."""
    return uniform(hashes).log_().neg_().log_().neg_()


def below(hashes: Tensor, limit: int) -> Tensor:
    """Return integers in [0, limit), by Lemire's multiply-and-shift (arXiv 1805.10941)."""
    return ((hashes.long() & 0xFFFFFFFF) * limit) >> 32


def draw(logits_CV: Tensor, key_C2: Tensor) -> Tensor:
    """Draw one token per position by the Gumbel-max trick, as a pure function of logits and keys."""
    return argmax(gumbel(token_hash(key_C2, logits_CV.shape[-1])).add_(logits_CV))


def send(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device through pinned memory. Otherwise, a copy to a GPU would first wait for all running kernels."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def _hash_of(words: Iterable[int], start: int) -> int:
    """Return the hash of integers, as `mix` computes it, in plain arithmetic: tensors of two elements are slower."""
    x = start * GOLDEN
    for word in words:
        x = (x ^ word) & 0xFFFFFFFF
        x = (x ^ x >> 16) * _M1 & 0xFFFFFFFF
        x = (x ^ x >> 15) * _M2 & 0xFFFFFFFF
        x = ((x ^ x >> 16) + GOLDEN) & 0xFFFFFFFF
    return x


def _int32(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
