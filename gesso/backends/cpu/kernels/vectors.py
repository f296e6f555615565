"""Vectors of 64 bytes for numba: their types, and the few operations that the kernels are made of.

numba has no vectors of its own, and LLVM does not find the products of bytes in its loops. Each operation here is one
or a few LLVM instructions on vectors of a fixed size, which LLVM splits where registers are smaller. Only the products
of bytes depend on the machine (`dots.py`). Memory is addressed by integers, in bytes, and need not be aligned.

    Bytes   64 integers of 8 bits
    Ints    16 integers of 32 bits
    Floats  16 float32
"""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, models, register_model

from gesso.backends.cpu.kernels import dots
from gesso.backends.cpu.kernels.instructions import (
    BYTE,
    FLOAT,
    INT,
    LONG,
    WORD,
    call,
    indices,
    load,
    load_some,
    splat,
    store,
)

LANES = 16  # of 32 bits


class Vector(types.Type):
    def __init__(self, name, element, lanes):
        self.llvm = ir.VectorType(element, lanes)
        super().__init__(name)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, type):
        super().__init__(manager, type, type.llvm)


Bytes, Ints, Floats = Vector("Bytes", BYTE, 4 * LANES), Vector("Ints", INT, LANES), Vector("Floats", FLOAT, LANES)


def operation(returned, *taken):
    """Make an operation for kernels of a function that builds its instructions: `build(builder, *arguments)`.

    numba takes the names of the arguments from the function it is given, so there is one for every number of them.
    """

    def decorate(build):
        def generate(context, builder, signature, arguments):
            result = build(builder, *arguments)
            return context.get_dummy_value() if returned is types.void else result

        def typed(typing, *arguments):
            return returned(*taken), generate

        forms = (
            lambda typing: typed(typing),
            lambda typing, a: typed(typing, a),
            lambda typing, a, b: typed(typing, a, b),
            lambda typing, a, b, c: typed(typing, a, b, c),
            lambda typing, a, b, c, d: typed(typing, a, b, c, d),
        )
        form = forms[len(taken)]
        form.__name__, form.__doc__ = build.__name__, build.__doc__
        return intrinsic(form)

    return decorate


# --- memory -----------------------------------------------------------------------------------------------------------


@operation(types.int64, types.intp)
def load_long(builder, address):
    return load(builder, address, LONG)


@operation(types.int64, types.intp)
def load_int(builder, address):
    return builder.sext(load(builder, address, INT), LONG)


@operation(types.float32, types.intp)
def load_float(builder, address):
    return load(builder, address, FLOAT)


@operation(types.float64, types.intp)
def load_double(builder, address):
    return load(builder, address, ir.DoubleType())


@operation(Bytes, types.intp)
def load_bytes(builder, address):
    return load(builder, address, Bytes.llvm)


@operation(Bytes, types.intp, types.intp)
def load_some_bytes(builder, address, count):
    """Load a multiple of 16 bytes; the others are zeros."""
    quarters = builder.lshr(count, ir.Constant(count.type, 2))
    return builder.bitcast(load_some(builder, address, quarters, Ints.llvm, "v16i32"), Bytes.llvm)


@operation(Ints, types.intp)
def load_ints(builder, address):
    return load(builder, address, Ints.llvm)


@operation(Floats, types.intp)
def load_floats(builder, address):
    return load(builder, address, Floats.llvm)


@operation(Floats, types.intp)
def load_scales(builder, address):
    """Load four bfloat16 values, each into four lanes."""
    return _widened(builder, load(builder, address, ir.VectorType(WORD, 4)))


@operation(Floats, types.intp, types.intp)
def load_some_scales(builder, address, count):
    """Load `count` bfloat16 values, each into four lanes; the other lanes are zeros."""
    return _widened(builder, load_some(builder, address, count, ir.VectorType(WORD, 4), "v4i16"))


def _widened(builder, words):
    ints = builder.shl(builder.zext(words, ir.VectorType(INT, 4)), ir.Constant(ir.VectorType(INT, 4), [16] * 4))
    floats = builder.bitcast(ints, ir.VectorType(FLOAT, 4))
    return builder.shuffle_vector(floats, floats, indices(lane // 4 for lane in range(LANES)))


@operation(types.void, types.intp, Floats)
def store_floats(builder, address, value):
    store(builder, address, value)


@operation(types.void, types.intp, types.float32)
def store_float(builder, address, value):
    store(builder, address, value)


@operation(types.void, types.intp, types.float32)
def store_scale(builder, address, value):
    """Store a value four times."""
    store(builder, address, splat(builder, value, 4))


@operation(types.void, types.intp, types.int64)
def store_int(builder, address, value):
    """Store the lowest 32 bits."""
    store(builder, address, builder.trunc(value, INT))


@operation(types.void, types.intp, types.int64)
def store_long(builder, address, value):
    store(builder, address, value)


@operation(types.void, types.intp)
def store_nothing(builder, address):
    """Store 16 bytes of zeros."""
    store(builder, address, ir.Constant(ir.VectorType(INT, 4), None))


@operation(types.void, types.intp, Ints)
def store_as_bytes(builder, address, value):
    """Store the lowest byte of every lane."""
    store(builder, address, builder.trunc(value, ir.VectorType(BYTE, LANES)))


@operation(types.void, types.intp, Ints, Ints)
def store_alternating(builder, address, a, b):
    """Store the lowest bytes of the lanes: four of a, four of b, the next four of a, and so on."""
    a, b = (builder.bitcast(builder.trunc(v, ir.VectorType(BYTE, LANES)), ir.VectorType(INT, 4)) for v in (a, b))
    store(builder, address, builder.shuffle_vector(a, b, indices((0, 4, 1, 5, 2, 6, 3, 7))))


@operation(types.void, types.intp)
def prefetch(builder, address):
    """Ask for the cache line at an address, which need not exist."""
    pointer = builder.inttoptr(address, BYTE.as_pointer())
    read, all_levels, data = (ir.Constant(INT, value) for value in (0, 3, 1))
    call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, read, all_levels, data)


@operation(types.int64, types.intp)
def take(builder, address):
    """Return the integer of 64 bits at an address and increment it there, atomically among threads."""
    return builder.atomic_rmw("add", builder.inttoptr(address, LONG.as_pointer()), ir.Constant(LONG, 1), "monotonic")


# --- bytes and integers -----------------------------------------------------------------------------------------------


@operation(Bytes, Bytes)
def low_nibbles(builder, value):
    return builder.and_(value, ir.Constant(Bytes.llvm, [15] * Bytes.llvm.count))


@operation(Bytes, Bytes)
def high_nibbles(builder, value):
    return builder.lshr(value, ir.Constant(Bytes.llvm, [4] * Bytes.llvm.count))


@operation(Bytes, Bytes, Bytes)
def first_halves(builder, a, b):
    """Return the first 16 of every 32 bytes."""
    return builder.shuffle_vector(a, b, indices(32 * (i // 16) + i % 16 for i in range(64)))


@operation(Bytes, Bytes, Bytes)
def second_halves(builder, a, b):
    """Return the last 16 of every 32 bytes."""
    return builder.shuffle_vector(a, b, indices(32 * (i // 16) + i % 16 + 16 for i in range(64)))


@operation(types.int64, Ints, Ints)
def sum_of(builder, a, b):
    """Return the sum of all lanes."""
    return builder.sext(call(builder, "llvm.vector.reduce.add.v16i32", INT, builder.add(a, b)), LONG)


@intrinsic
def dot_nibbles(typing, total, nibbles, signed):
    """Add to each lane the products of its four bytes: values 0 to 15, times signed ones."""

    def generate(context, builder, signature, arguments):
        return dots.dot(builder, dots.features(context), *arguments, nibbles=True)

    return Ints(Ints, Bytes, Bytes), generate


@intrinsic
def dot_bytes(typing, total, codes, signed):
    """Add to each lane the products of its four bytes: signed values plus `bytes_offset()`, times signed ones."""

    def generate(context, builder, signature, arguments):
        return dots.dot(builder, dots.features(context), *arguments, nibbles=False)

    return Ints(Ints, Bytes, Bytes), generate


@intrinsic
def bytes_offset(typing):
    """Return what this machine adds to signed bytes, in effect, before it multiplies: 128 or 0."""

    def generate(context, builder, signature, arguments):
        return ir.Constant(LONG, dots.offset(dots.features(context)))

    return types.int64(), generate


@intrinsic
def offset_bytes(typing, value):
    """Add `bytes_offset()` to signed bytes."""

    def generate(context, builder, signature, arguments):
        flipped = ir.Constant(Bytes.llvm, [dots.offset(dots.features(context))] * Bytes.llvm.count)
        return builder.xor(arguments[0], flipped)

    return Bytes(Bytes), generate


# --- floating point ---------------------------------------------------------------------------------------------------


@operation(Floats)
def no_floats(builder):
    return ir.Constant(Floats.llvm, None)


@operation(Floats, Ints)
def to_floats(builder, value):
    return builder.sitofp(value, Floats.llvm)


@operation(Ints, Floats, types.float32)
def rounded(builder, value, factor):
    """Multiply, and round to the nearest integers, to even ones if two are as near. NaN becomes 0."""
    product = builder.fmul(value, splat(builder, factor, LANES))
    nearest = call(builder, "llvm.rint.v16f32", Floats.llvm, product)
    is_number = builder.fcmp_ordered("ord", nearest, nearest)
    return builder.fptosi(builder.select(is_number, nearest, ir.Constant(Floats.llvm, None)), Ints.llvm)


@operation(Floats, Floats, Floats)
def even_lanes(builder, a, b):
    return builder.shuffle_vector(a, b, indices(range(0, 2 * LANES, 2)))


@operation(Floats, Floats, Floats)
def odd_lanes(builder, a, b):
    return builder.shuffle_vector(a, b, indices(range(1, 2 * LANES, 2)))


@operation(types.float32, Floats, Floats)
def largest(builder, a, b):
    """Return the largest magnitude of all lanes; NaN if one of them is.

    Without its sign, a larger number has larger bits, and those of NaN are the largest.
    """
    magnitude = ir.Constant(Ints.llvm, [0x7FFFFFFF] * LANES)
    a, b = (builder.and_(builder.bitcast(value, Ints.llvm), magnitude) for value in (a, b))
    both = call(builder, "llvm.umax.v16i32", Ints.llvm, a, b)
    return builder.bitcast(call(builder, "llvm.vector.reduce.umax.v16i32", INT, both), FLOAT)


@operation(Floats, Floats, Floats)
def times(builder, a, b):
    return builder.fmul(a, b)


@operation(Floats, types.float32)
def floats(builder, value):
    """Return a value in every lane."""
    return splat(builder, value, LANES)


@operation(Floats, Floats, Floats)
def plus(builder, a, b):
    return builder.fadd(a, b)


@operation(Floats, Floats, Floats)
def minus(builder, a, b):
    return builder.fsub(a, b)


@operation(Floats, Floats, Floats)
def divided(builder, a, b):
    return builder.fdiv(a, b)


@operation(Floats, Floats, Floats)
def larger(builder, a, b):
    """Return the larger of two values in every lane; NaN if one of them is."""
    return call(builder, "llvm.maximum.v16f32", Floats.llvm, a, b)


@operation(types.float32, Floats)
def greatest(builder, value):
    """Return the largest of all lanes; NaN if one of them is."""
    return call(builder, "llvm.vector.reduce.fmaximum.v16f32", FLOAT, value)


@operation(Floats, Floats, types.float32)
def multiplied(builder, value, factor):
    return builder.fmul(value, splat(builder, factor, LANES))


@operation(Floats, Floats, Floats, Floats)
def fused(builder, a, b, c):
    """Return a · b + c, rounded once."""
    return call(builder, "llvm.fma.v16f32", Floats.llvm, a, b, c)


@operation(types.float32, Floats)
def total(builder, value):
    """Return the sum of the lanes. The order of additions is fixed: halves are added until one lane is left."""
    for lanes in (8, 4, 2, 1):
        low = builder.shuffle_vector(value, value, indices(range(lanes)))
        value = builder.fadd(low, builder.shuffle_vector(value, value, indices(range(lanes, 2 * lanes))))
    return builder.extract_element(value, ir.Constant(INT, 0))
