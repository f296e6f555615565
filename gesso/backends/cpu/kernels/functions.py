"""Functions of vectors of float32: exponential, logarithm, and those that are made of them."""

import math

from llvmlite import ir
from numba import types

from gesso.backends.cpu.kernels import vectors as vec
from gesso.backends.cpu.kernels.compiling import inlined
from gesso.backends.cpu.kernels.instructions import call
from gesso.backends.cpu.kernels.vectors import LANES, Floats, Ints, operation

GELU_SLOPE, GELU_CUBE = math.sqrt(2 / math.pi), 0.044715  # as in `gesso/model/modules.py`
ROOT = 0x3F3504F3  # the bits of sqrt(1/2)


def _constant(number):
    return ir.Constant(Floats.llvm, [number] * LANES)


@operation(Floats, Floats)
def exponential(builder, value):
    """Return e^x with a relative error of 2e-7, between -87 and 88; beyond, that of these bounds. Of NaN it is NaN."""
    bounded = call(builder, "llvm.maximum.v16f32", Floats.llvm, value, _constant(-87.0))
    bounded = call(builder, "llvm.minimum.v16f32", Floats.llvm, bounded, _constant(88.0))
    power = builder.fmul(bounded, _constant(1 / math.log(2)))
    whole = call(builder, "llvm.rint.v16f32", Floats.llvm, power)
    rest = builder.fsub(power, whole)
    result = _constant(math.log(2) ** 6 / 720)  # the Taylor series of 2^rest, from its last term
    for degree in (5, 4, 3, 2, 1, 0):
        term = _constant(math.log(2) ** degree / math.factorial(degree))
        result = call(builder, "llvm.fma.v16f32", Floats.llvm, result, rest, term)
    exponent = builder.shl(builder.fptosi(whole, Ints.llvm), ir.Constant(Ints.llvm, [23] * LANES))
    scaled = builder.bitcast(builder.add(builder.bitcast(result, Ints.llvm), exponent), Floats.llvm)
    return builder.select(builder.fcmp_ordered("ord", value, value), scaled, value)


@operation(Floats, Floats)
def logarithm(builder, value):
    """Return the natural logarithm of positive normal numbers, with a relative error of 3e-7."""
    bits, shift = builder.bitcast(value, Ints.llvm), ir.Constant(Ints.llvm, [23] * LANES)
    # value = 2^exponent · fraction, with a fraction between sqrt(1/2) and sqrt(2): near 1 nothing cancels.
    exponent = builder.ashr(builder.sub(bits, ir.Constant(Ints.llvm, [ROOT] * LANES)), shift)
    fraction = builder.bitcast(builder.sub(bits, builder.shl(exponent, shift)), Floats.llvm)
    # log(f) = 2 artanh(s) with s = (f - 1) / (f + 1), up to 0.172, as a series from its last term.
    s = builder.fdiv(builder.fsub(fraction, _constant(1.0)), builder.fadd(fraction, _constant(1.0)))
    square, result = builder.fmul(s, s), _constant(2 / 9)
    for degree in (7, 5, 3, 1):
        result = call(builder, "llvm.fma.v16f32", Floats.llvm, result, square, _constant(2 / degree))
    powers = builder.fmul(builder.sitofp(exponent, Floats.llvm), _constant(math.log(2)))
    return call(builder, "llvm.fma.v16f32", Floats.llvm, s, result, powers)


@inlined
def sigmoid(value):
    one = vec.floats(types.float32(1))
    return vec.divided(one, vec.plus(one, exponential(vec.multiplied(value, types.float32(-1)))))


@inlined
def gated_gelu(gate, up):
    """Return `up` times the tanh form of GELU of `gate`: x (1 + tanh(u)) / 2 is x sigmoid(2u)."""
    slope = vec.fused(vec.times(gate, gate), vec.floats(types.float32(2 * GELU_SLOPE * GELU_CUBE)),
                      vec.floats(types.float32(2 * GELU_SLOPE)))  # fmt: skip
    return vec.times(vec.times(gate, up), sigmoid(vec.times(slope, gate)))


@inlined
def softcapped(value, cap):
    """Return cap · tanh(x / cap), where tanh(u) is 1 - 2 / (1 + e^2u)."""
    power = exponential(vec.multiplied(value, types.float32(2) / cap))
    rest = vec.divided(vec.floats(types.float32(2)), vec.plus(vec.floats(types.float32(1)), power))
    return vec.multiplied(vec.minus(vec.floats(types.float32(1)), rest), cap)
