"""The hashes of `gesso/diffusion/hash.py` in Triton, to the bit: functions for other kernels.

As plain operations the hashes of a step are a hundred launches, which together compute for less than a microsecond.
"""

import triton
import triton.language as tl

from gesso.backends.cuda.kernels.capped import LOG2E
from gesso.backends.cuda.kernels.special import log2
from gesso.diffusion import hash

_GOLDEN = tl.constexpr(hash.GOLDEN)
_M1 = tl.constexpr(hash._M1)
_M2 = tl.constexpr(hash._M2)

# --- functions --------------------------------------------------------------------------------------------------------


@triton.jit
def _xorshift(x, bits: tl.constexpr):
    return x ^ ((x >> bits) & ((1 << (32 - bits)) - 1))


@triton.jit
def mix(x):
    return _xorshift(_xorshift(_xorshift(x, 16) * _M1, 15) * _M2, 16)


@triton.jit
def token_hash(key_0, key_1, token):
    return _xorshift(_before_last_shift(key_0, key_1, token), 16)


@triton.jit
def token_uniform(key_0, key_1, token):
    """Return `uniform(token_hash(key_0, key_1, token))`, with the shifts of both combined: one instruction less."""
    x = _before_last_shift(key_0, key_1, token).to(tl.uint32, bitcast=True)
    return _between_one_and_two((x >> 9) ^ (x >> 25)) - (1.0 - 2.0**-24)


@triton.jit
def negative_gumbel(key_0, key_1, token, PTX: tl.constexpr):
    """Return negative Gumbel noise in powers of two, up to a constant: log2 of an exponential draw -log2(u).

    If u is close to one, the draw is tiny, and its relative error matters, because those tokens win. An instruction
    with an absolute error is not enough, so that range uses the series of log(1 - v), with v = 1 - u exact. At the
    border both are good to 5e-6 of the draw, which is the error of the noise; elsewhere it is smaller.
    """
    u = token_uniform(key_0, key_1, token)
    v = 1.0 - u
    series = v * (LOG2E + v * (LOG2E / 2 + v * (LOG2E / 3 + v * (LOG2E / 4))))
    return log2(tl.abs(tl.where(v < 0.03125, series, log2(u, PTX))), PTX)


@triton.jit
def _before_last_shift(key_0, key_1, token):
    # A shift of a ^ b is the shift of a ^ that of b: two instructions less per pair of position and token.
    x = (_xorshift(token * _GOLDEN, 16) ^ _xorshift(key_0, 16)) * _M1 + key_1
    return _xorshift(x, 15) * _M2


@triton.jit
def below(hashes, LIMIT: tl.constexpr):
    return ((hashes.to(tl.int64) & 0xFFFFFFFF) * LIMIT) >> 32


@triton.jit
def uniform(hashes):
    # Use the 23 bits as the mantissa of a number between 1 and 2: the subtraction is exact, and cheaper than a
    # conversion.
    return _between_one_and_two((hashes >> 9) & 0x7FFFFF) - (1.0 - 2.0**-24)


@triton.jit
def _between_one_and_two(bits):
    return (bits | 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def _step_hash(half, seed, canvas, step, STREAM: tl.constexpr):
    """Return the hash shared by all positions of a step, for the first or the second of a position's two hashes."""
    x = mix(half * _GOLDEN ^ seed.to(tl.int32)) + _GOLDEN
    x = mix(x ^ (seed >> 32).to(tl.int32)) + _GOLDEN
    x = mix(x ^ canvas.to(tl.int32)) + _GOLDEN
    x = mix(x ^ step.to(tl.int32)) + _GOLDEN
    return mix(x ^ STREAM) + _GOLDEN


@triton.jit
def position_hash(position, half, seed, canvas, step, STREAM: tl.constexpr):
    """Return the first (half 0) or the second of the two hashes of a position."""
    own = _step_hash(half, seed, canvas, step, STREAM)
    other = _step_hash(1 - half, seed, canvas, step, STREAM)
    return mix(mix(position * _GOLDEN ^ own) + other)
