"""Products of bytes, summed in fours: the instruction that each kind of processor has for them.

AVX-512 VNNI, AVX-VNNI    vpdpbusd: unsigned times signed bytes. Signed weights are offset by 128.
AVX2                      vpmaddubsw, which saturates sums of two beyond 16 bits, and vpmaddwd
ARM with dot products     sdot: signed times signed bytes
any other                 widened to 32 bits; correct, and slow
"""

import platform

from llvmlite import ir

from gesso.backends.cpu.kernels.instructions import WORD, call, indices

OFFSET = 128


def features(context):
    """Return the features of the processor that numba compiles for."""
    names = {name[1:] for name in context.codegen().magic_tuple()[2].split(",") if name.startswith("+")}
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        names.add("dotprod")  # every Apple processor with this architecture has it; LLVM does not report all features
    return names


def offset(features):
    """Return the number that must be added to signed weights, and whose share `rounding.py` takes back."""
    return OFFSET if _is_unsigned(features) else 0


def _is_unsigned(features):
    return not features.isdisjoint(("avx512vnni", "avxvnni"))


def dot(builder, features, total, weights, signed, nibbles):
    """Add the products of weights and signed bytes to `total`.

    The weights are nibbles, 0 to 15, or signed bytes plus `offset`. Signed bytes must not be -128.
    """
    if "avx512vnni" in features:
        return _parts(builder, 64, _vnni("llvm.x86.avx512.vpdpbusd.512"), total, weights, signed)
    if "avxvnni" in features:
        return _parts(builder, 32, _vnni("llvm.x86.avx512.vpdpbusd.256"), total, weights, signed)
    if "avx2" in features:
        return _parts(builder, 32, _avx2_nibbles if nibbles else _avx2, total, weights, signed)
    if "dotprod" in features:
        return _parts(builder, 16, _sdot, total, weights, signed)
    return _widened(builder, total, weights, signed)


def _parts(builder, size, function, total, weights, signed):
    """Apply a function to parts of `size` bytes and join the results."""
    count = weights.type.count // size
    results = [
        function(
            builder,
            _part(builder, total, i, size // 4),
            _part(builder, weights, i, size),
            _part(builder, signed, i, size),
        )
        for i in range(count)
    ]
    while len(results) > 1:
        lanes = 2 * results[0].type.count
        results = [
            builder.shuffle_vector(a, b, indices(range(lanes)))
            for a, b in zip(results[0::2], results[1::2], strict=True)
        ]
    return results[0]


def _part(builder, value, number, lanes):
    if value.type.count == lanes:
        return value
    return builder.shuffle_vector(value, value, indices(range(number * lanes, (number + 1) * lanes)))


def _vnni(name):
    def function(builder, total, weights, signed):
        words = (builder.bitcast(value, total.type) for value in (weights, signed))
        return call(builder, name, total.type, total, *words)

    return function


def _avx2(builder, total, weights, signed):
    """Multiply magnitudes by signed bytes with the signs of the weights: at most 2 · 127 · 127, which 16 bits hold."""
    magnitude = call(builder, "llvm.abs.v32i8", weights.type, weights, ir.Constant(ir.IntType(1), 0))
    return _avx2_nibbles(
        builder, total, magnitude, call(builder, "llvm.x86.avx2.psign.b", signed.type, signed, weights)
    )


def _avx2_nibbles(builder, total, weights, signed):
    pairs_type = ir.VectorType(WORD, 16)
    pairs = call(builder, "llvm.x86.avx2.pmadd.ub.sw", pairs_type, weights, signed)
    fours = call(builder, "llvm.x86.avx2.pmadd.wd", total.type, pairs, ir.Constant(pairs_type, [1] * 16))
    return builder.add(total, fours)


def _sdot(builder, total, weights, signed):
    return call(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", total.type, total, weights, signed)


def _widened(builder, total, weights, signed):
    for place in range(4):
        factors = [
            builder.sext(builder.shuffle_vector(value, value, indices(range(place, 64, 4))), total.type)
            for value in (weights, signed)
        ]
        total = builder.add(total, builder.mul(*factors))
    return total
