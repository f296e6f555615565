"""Randomness as a pure function: 32-bit hashes of (seed, canvas, step, position, token), alike on every device.

Integer arithmetic only, in int32 with wrap-around, which torch (CPU and CUDA) and Triton compute to the same bits.
The mixing function is Chris Wellons' `lowbias32` (https://nullprogram.com/blog/2018/07/31/, public domain).
C positions of a canvas, V tokens of the vocabulary.
"""

import torch
from torch import Tensor

GOLDEN = -1640531527  # 0x9E3779B9 as int32: spreads consecutive numbers over all bits
_M1 = 0x7FEB352D
_M2 = -2073254261  # 0x846CA68B as int32


def _xorshift(x: Tensor, bits: int) -> Tensor:
    # int32 shifts carry the sign in; the mask makes it the logical shift of the definition
    return x ^ ((x >> bits) & ((1 << (32 - bits)) - 1))


def mix(x: Tensor) -> Tensor:
    return _xorshift(_xorshift(_xorshift(x, 16) * _M1, 15) * _M2, 16)


def position_keys(
    seed: int | Tensor, canvas: int | Tensor, step: int | Tensor, stream: int, length: int, device: torch.device
) -> Tensor:
    """Two hashes [C, 2] for each position; `stream` tells apart the different draws of one step.

    Numbers of several canvases, tensors [B], give [B, C, 2]: to each what it would be given alone.
    """
    words = (*halves(seed), canvas, step, stream)
    # Plain integers are hashed on the host: on a GPU the same takes a hundred launches. One tensor among them decides.
    where = device if any(isinstance(word, Tensor) for word in words) else torch.device("cpu")
    x = torch.arange(2, dtype=torch.int32, device=where) * GOLDEN
    for word in words:
        x = mix(x ^ (word.int()[:, None] if isinstance(word, Tensor) else _int32(word))) + GOLDEN
    x = x.unsqueeze(-2)
    position_C1 = torch.arange(length, dtype=torch.int32, device=where)[:, None]
    key_C2 = mix(mix(position_C1 * GOLDEN ^ x) + x.flip(-1))
    return key_C2 if where == device else send(key_C2, device)


def position_tokens(
    seed: int | Tensor,
    canvas: int | Tensor,
    step: int | Tensor,
    stream: int,
    length: int,
    limit: int,
    device: torch.device,
) -> Tensor:
    """A whole number in [0, limit) for each position [C], or [B, C], made of the first of its two hashes."""
    return below(position_keys(seed, canvas, step, stream, length, device)[..., 0], limit)


def halves(seed: int | Tensor) -> tuple[int | Tensor, int | Tensor]:
    """The low and the high 32 bits of a seed; those of several, [B] in 64 bits, keep theirs when cut to 32."""
    return seed & 0xFFFFFFFF, seed >> 32


def token_hash(key_C2: Tensor, vocab_size: int) -> Tensor:
    """A hash [C, V] for every token at every position: the mix above with the second key half folded in midway."""
    token_V = torch.arange(vocab_size, dtype=torch.int32, device=key_C2.device) * GOLDEN
    x = _xorshift(token_V ^ key_C2[:, :1], 16) * _M1 + key_C2[:, 1:]
    return _xorshift(_xorshift(x, 15) * _M2, 16)


def uniform(hashes: Tensor) -> Tensor:
    """Numbers strictly between 0 and 1 from the upper 23 bits, each exact in float32.

    With one bit more the largest would be rounded to 1, and the token that drew it would win whatever the model says.
    """
    return (((hashes >> 9) & 0x7FFFFF).float() + 0.5) * 2.0**-23


def gumbel(hashes: Tensor) -> Tensor:
    return -torch.log(-torch.log(uniform(hashes)))


def below(hashes: Tensor, limit: int) -> Tensor:
    """Whole numbers in [0, limit), by the multiply-and-shift of Lemire (arXiv 1805.10941)."""
    return ((hashes.long() & 0xFFFFFFFF) * limit) >> 32


def draw(logits_CV: Tensor, key_C2: Tensor) -> Tensor:
    """Draw one token per position by the Gumbel-max trick: a pure function of the logits and the keys."""
    return (logits_CV + gumbel(token_hash(key_C2, logits_CV.shape[-1]))).argmax(-1)


def send(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device. From memory that is not pinned, a copy to a GPU would first wait for all running kernels."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def _int32(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
