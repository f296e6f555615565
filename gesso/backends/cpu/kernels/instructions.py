"""LLVM instructions that several operations share. Addresses are integers, and need not be aligned."""

from llvmlite import ir

BYTE, WORD, INT, LONG, FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()


def indices(values):
    values = list(values)
    return ir.Constant(ir.VectorType(INT, len(values)), values)


def splat(builder, scalar, lanes):
    vector = ir.VectorType(scalar.type, lanes)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(INT, 0))
    return builder.shuffle_vector(one, one, indices([0] * lanes))


def call(builder, name, returned, *arguments):
    function_type = ir.FunctionType(returned, [argument.type for argument in arguments])
    return builder.call(builder.module.declare_intrinsic(name, (), function_type), arguments)


def load(builder, address, type):
    return builder.load(builder.inttoptr(address, type.as_pointer()), align=1)


def store(builder, address, value):
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


def load_some(builder, address, count, vector, name):
    """Load the first lanes. The others are zeros, and their memory is not touched."""
    mask = builder.icmp_signed(
        "<", indices(range(vector.count)), splat(builder, builder.trunc(count, INT), vector.count)
    )
    pointer = builder.inttoptr(address, vector.as_pointer())
    zeros = ir.Constant(vector, None)
    return call(builder, f"llvm.masked.load.{name}.p0", vector, pointer, ir.Constant(INT, 1), mask, zeros)
