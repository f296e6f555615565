"""Operations on tiles: products of four rows and 32 outputs at once, for kernels with many rows.

Weights are rearranged first, 16 outputs at a time, so that each output has a lane of its own. A group of 32 inputs is
then eight products of bytes, one conversion and one multiplication by the scales, instead of four of each.

    rearranged group   8 x 64 bytes: four inputs of all 16 outputs; then 16 float32, the scales
    group of a row     32 bytes: its rounded values; then an int32 that sums start from, and a float32, the scale

int4 weights are rearranged in words of 32 bits, eight nibbles. The low ones are even inputs and come first, so the
bytes of a row alternate: four even ones, four odd ones.
"""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, models, register_model

from gesso.backends.cpu.kernels import dots
from gesso.backends.cpu.kernels.instructions import FLOAT, INT, LONG, WORD, call, indices, load, load_some, splat, store
from gesso.backends.cpu.kernels.vectors import LANES, Bytes, Floats, Ints, operation

ROWS, COLUMNS = 4, 2  # of a tile: in AVX-512, sums take 16 of 32 registers
GROUP_BYTES = 8 * 64 + 64  # of a rearranged group
ROW_GROUP_BYTES = 32 + 8


class _Tile(types.Type):
    """The sums of a tile: vectors of 16 outputs, row by row."""

    llvm = ir.ArrayType(Floats.llvm, ROWS * COLUMNS)


@register_model(_Tile)
class _TileModel(models.PrimitiveModel):
    def __init__(self, manager, type):
        super().__init__(manager, type, type.llvm)


Tile = _Tile("Tile")


@operation(Tile)
def no_tile(builder):
    return ir.Constant(Tile.llvm, None)


def _plus(builder, address, offset):
    return builder.add(address, offset if isinstance(offset, ir.Value) else ir.Constant(LONG, offset))


def _add_group(nibbles):
    @intrinsic
    def add_group(typing, tile, x0, x1, x2, x3, weights, column_bytes):
        """Add the products of one group: addresses of the group in four rows, and in the weights of two columns."""

        def generate(context, builder, signature, arguments):
            features = dots.features(context)
            tile, *rows, weights, column_bytes = arguments
            columns = [weights, builder.add(weights, column_bytes)]
            sums = [[splat(builder, load(builder, _plus(builder, x, 32), INT), LANES)] * COLUMNS for x in rows]
            for word in range(8):
                codes = [load(builder, _plus(builder, column, 64 * word), Bytes.llvm) for column in columns]
                for r, x in enumerate(rows):
                    four = splat(builder, load(builder, _plus(builder, x, 4 * word), INT), LANES)
                    four = builder.bitcast(four, Bytes.llvm)
                    sums[r] = [
                        dots.dot(builder, features, total, code, four, nibbles)
                        for total, code in zip(sums[r], codes, strict=True)
                    ]
            scales = [load(builder, _plus(builder, column, 512), Floats.llvm) for column in columns]
            for r, x in enumerate(rows):
                row_scale = splat(builder, load(builder, _plus(builder, x, 36), FLOAT), LANES)
                for c in range(COLUMNS):
                    scale = builder.fmul(scales[c], row_scale)
                    before = builder.extract_value(tile, r * COLUMNS + c)
                    after = call(
                        builder, "llvm.fma.v16f32", Floats.llvm, builder.sitofp(sums[r][c], Floats.llvm), scale, before
                    )
                    tile = builder.insert_value(tile, after, r * COLUMNS + c)
            return tile

        return Tile(Tile, *[types.intp] * 6), generate

    return add_group


add_int4_group, add_int8_group = _add_group(nibbles=True), _add_group(nibbles=False)


def _places(builder, tile, rows, outputs):
    """Yield number, pointer and mask of each vector of a tile whose rows start at these addresses."""
    for number in range(ROWS * COLUMNS):
        row, column = divmod(number, COLUMNS)
        count = builder.trunc(builder.sub(outputs, ir.Constant(LONG, column * LANES)), INT)
        mask = builder.icmp_signed("<", indices(range(LANES)), splat(builder, count, LANES))
        yield number, builder.inttoptr(_plus(builder, rows[row], 64 * column), Floats.llvm.as_pointer()), mask


@intrinsic
def load_tile(typing, y0, y1, y2, y3, outputs):
    """Load the first `outputs` sums, at most 32, of each row; the others are zeros."""

    def generate(context, builder, signature, arguments):
        *rows, outputs = arguments
        tile, align = ir.Constant(Tile.llvm, None), ir.Constant(INT, 1)
        for number, pointer, mask in _places(builder, tile, rows, outputs):
            zeros = ir.Constant(Floats.llvm, None)
            value = call(builder, "llvm.masked.load.v16f32.p0", Floats.llvm, pointer, align, mask, zeros)
            tile = builder.insert_value(tile, value, number)
        return tile

    return Tile(*[types.intp] * 5), generate


@intrinsic
def store_tile(typing, tile, y0, y1, y2, y3, outputs):
    """Store the first `outputs` sums, at most 32, of each row."""

    def generate(context, builder, signature, arguments):
        tile, *rows, outputs = arguments
        align = ir.Constant(INT, 1)
        for number, pointer, mask in _places(builder, tile, rows, outputs):
            value = builder.extract_value(tile, number)
            call(builder, "llvm.masked.store.v16f32.p0", ir.VoidType(), value, pointer, align, mask)
        return context.get_dummy_value()

    return types.void(Tile, *[types.intp] * 5), generate


# --- rearranging ------------------------------------------------------------------------------------------------------


def _transposed(builder, rows):
    """Transpose 16 vectors of 16 lanes: four rounds, each of which interleaves the lanes of vectors i and i + 8."""
    low = indices(lane // 2 + LANES * (lane % 2) for lane in range(LANES))
    high = indices(8 + lane // 2 + LANES * (lane % 2) for lane in range(LANES))
    for _ in range(4):
        pairs = list(zip(rows[:8], rows[8:], strict=True))
        rows = [builder.shuffle_vector(a, b, order) for a, b in pairs for order in (low, high)]
    return rows


def _row_addresses(builder, first, row_bytes, rows):
    """Return the addresses of 16 rows. Beyond the last one, it is repeated."""
    last = builder.sub(rows, ir.Constant(LONG, 1))
    addresses = []
    for number in range(LANES):
        row = ir.Constant(LONG, number)
        row = builder.select(builder.icmp_signed("<", row, last), row, last)
        addresses.append(builder.add(first, builder.mul(row, row_bytes)))
    return addresses


def _rearrange(bits, whole):
    """Make the operation for blocks of four groups, or if not `whole`, of fewer."""

    @intrinsic
    def rearrange(typing, weight, row_bytes, rows, groups, target):
        """Write the weights of a block, at an address in the first of so many rows, for tiles."""

        def generate(context, builder, signature, arguments):
            weight, row_bytes, rows, groups, target = arguments
            offset = ir.Constant(Bytes.llvm, [dots.offset(dots.features(context))] * 64)
            nibble, shift = ir.Constant(Bytes.llvm, [15] * 64), ir.Constant(Bytes.llvm, [4] * 64)
            addresses = _row_addresses(builder, weight, row_bytes, rows)
            per_vector = 16 // bits  # groups in 64 bytes
            for vector in range(4 // per_vector):
                at = [_plus(builder, address, 64 * vector) for address in addresses]
                if whole:
                    loaded = [load(builder, address, Ints.llvm) for address in at]
                else:
                    count = builder.mul(
                        builder.sub(groups, ir.Constant(LONG, vector * per_vector)), ir.Constant(LONG, bits)
                    )
                    loaded = [load_some(builder, address, count, Ints.llvm, "v16i32") for address in at]
                for place, words in enumerate(_transposed(builder, loaded)):
                    codes = builder.bitcast(words, Bytes.llvm)
                    if bits == 4:
                        parts = [builder.and_(codes, nibble), builder.lshr(codes, shift)]
                    else:
                        parts = [builder.xor(codes, offset)]
                    number = (vector * LANES + place) * len(parts)
                    for i, part in enumerate(parts):
                        group, word = divmod(number + i, 8)
                        store(builder, _plus(builder, target, group * GROUP_BYTES + 64 * word), part)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 5), generate

    return rearrange


rearrange_int4, rearrange_some_int4 = _rearrange(4, True), _rearrange(4, False)
rearrange_int8, rearrange_some_int8 = _rearrange(8, True), _rearrange(8, False)


def _rearrange_scales(whole):
    @intrinsic
    def rearrange_scales(typing, scale, row_bytes, rows, groups, target):
        """Write the bfloat16 scales of a block as float32 for tiles."""

        def generate(context, builder, signature, arguments):
            scale, row_bytes, rows, groups, target = arguments
            four = ir.VectorType(WORD, 4)
            vectors = []
            for address in _row_addresses(builder, scale, row_bytes, rows):
                vectors.append(
                    load(builder, address, four) if whole else load_some(builder, address, groups, four, "v4i16")
                )
            while len(vectors) > 1:
                lanes = 2 * vectors[0].type.count
                vectors = [
                    builder.shuffle_vector(a, b, indices(range(lanes)))
                    for a, b in zip(vectors[0::2], vectors[1::2], strict=True)
                ]
            for group in range(4):
                words = builder.shuffle_vector(vectors[0], vectors[0], indices(range(group, 64, 4)))
                ints = builder.shl(builder.zext(words, Ints.llvm), ir.Constant(Ints.llvm, [16] * LANES))
                store(builder, _plus(builder, target, group * GROUP_BYTES + 512), ints)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 5), generate

    return rearrange_scales


rearrange_scales, rearrange_some_scales = _rearrange_scales(True), _rearrange_scales(False)
