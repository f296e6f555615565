"""Unpack some rows of a packed matrix to float32. V rows of the matrix, I inputs, R rows that are unpacked."""

from llvmlite import ir
from numba import njit, types

from gesso.backends.cpu.kernels import vectors as vec
from gesso.backends.cpu.kernels.compiling import VERSION, entry, load_four
from gesso.backends.cpu.kernels.instructions import BYTE, FLOAT, INT, WORD, indices, load
from gesso.backends.cpu.kernels.rounding import GROUP
from gesso.backends.cpu.kernels.vectors import LANES, Floats, Ints, operation

_SIXTEEN = ir.VectorType(BYTE, LANES)


def _nibbles(builder, codes):
    values = builder.sub(builder.zext(codes, Ints.llvm), ir.Constant(Ints.llvm, [8] * LANES))
    return builder.sitofp(values, Floats.llvm)


@operation(Floats, types.intp)
def _low_nibbles(builder, address):
    return _nibbles(builder, builder.and_(load(builder, address, _SIXTEEN), ir.Constant(_SIXTEEN, [15] * LANES)))


@operation(Floats, types.intp)
def _high_nibbles(builder, address):
    return _nibbles(builder, builder.lshr(load(builder, address, _SIXTEEN), ir.Constant(_SIXTEEN, [4] * LANES)))


@operation(Floats, types.intp)
def _signed_bytes(builder, address):
    return builder.sitofp(builder.sext(load(builder, address, _SIXTEEN), Ints.llvm), Floats.llvm)


def _alternating(first):
    """Return the indices that take the lanes of two vectors in turn, from lane `first` on."""
    return indices(lane for i in range(first, first + LANES // 2) for lane in (i, LANES + i))


@operation(Floats, Floats, Floats)
def _first_pairs(builder, even, odd):
    return builder.shuffle_vector(even, odd, _alternating(0))


@operation(Floats, Floats, Floats)
def _last_pairs(builder, even, odd):
    return builder.shuffle_vector(even, odd, _alternating(LANES // 2))


@operation(types.float32, types.intp)
def _load_scale(builder, address):
    """Load a bfloat16."""
    return builder.bitcast(builder.shl(builder.zext(load(builder, address, WORD), INT), ir.Constant(INT, 16)), FLOAT)


@njit
def _unpack_row(codes, scales, inputs, bits, y):
    for group in range(inputs // GROUP):
        at, scale = codes + 4 * bits * group, _load_scale(scales + 2 * group)
        if bits == 4:
            even, odd = _low_nibbles(at), _high_nibbles(at)
            a, b = _first_pairs(even, odd), _last_pairs(even, odd)
        else:
            a, b = _signed_bytes(at), _signed_bytes(at + 16)
        vec.store_floats(y + 4 * GROUP * group, vec.multiplied(a, scale))
        vec.store_floats(y + 4 * GROUP * group + 64, vec.multiplied(b, scale))


def _entries(version):
    @entry
    def unpack(arguments):
        """Unpack rows of a matrix (see `matrices.py`): those of `index`, int64 [R], to float32 [R, I]."""
        matrix, index, rows, out = load_four(arguments + 8)
        codes, scales, _, inputs = load_four(matrix)
        bits = vec.load_long(matrix + 32)
        while version:
            i = vec.take(arguments)
            if i >= rows:
                break
            row = vec.load_long(index + 8 * i)
            _unpack_row(
                codes + row * inputs * bits // 8, scales + row * (inputs // 16), inputs, bits, out + 4 * i * inputs
            )

    return unpack


unpack = _entries(VERSION)
