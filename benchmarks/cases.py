"""Inputs, expected outputs and amount of work of every kernel, at the size of the real model.

E experts, O outputs, I inputs, B bytes of two values, G groups that share a scale, R (token, expert) pairs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gesso.backends.cuda import reference
from gesso.backends.cuda.activations import NextNorm
from gesso.backends.cuda.kernels import experts, experts_four_bit, linear, rows
from gesso.backends.cuda.kernels.four_bit import FourBitMatrices, interleaved
from gesso.backends.cuda.kernels.hidden import Hidden, new_fp8, new_interleaved, new_plain
from gesso.backends.cuda.kernels.linear import BLOCK, FP8
from gesso.cards.running import card_of
from gesso.model.experts import route as expert_route

READ = 4.27e12  # bytes per second, measured on an H200 (a sum over 2 GB); 4.8e12 by the datasheet
DENSE = {"bf16": 989e12, "fp8": 1979e12, "int4": 989e12, "uint4": 989e12, "nvfp4": 989e12}  # by the datasheet
COPIES = 6  # of the weights, used in turn: more than fit the 50 MB cache
GROUP = {"int4": 32, "uint4": 32, "nvfp4": 16}


@dataclass(frozen=True, kw_only=True)
class Shape:
    tokens: int = 256
    hidden: int = 2816
    experts: int = 128
    k: int = 8
    expert_width: int = 704
    width: int = 2112


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel with inputs. `call(i)` uses copy i of the weights; `wide(call(0))` should equal `plain()`."""

    call: Callable[[int], Any]
    plain: Callable[[], Tensor]
    wide: Callable[[Any], Tensor] = staticmethod(lambda found: found)
    bytes: int
    flops: int
    precision: str

    @property
    def floor(self) -> float:
        """Return the lower bound of the time in seconds, by memory bandwidth and arithmetic."""
        return max(self.bytes / READ, self.flops / DENSE[self.precision])


def _together(found: Sequence[Any]) -> Tensor:
    return torch.cat(list(found))


def _normal(*shape: int, size: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return (torch.randn(*shape, device="cuda") * size).to(dtype)


@dataclass(frozen=True)
class Copies:
    packed: list[Any]  # in the kernel's format
    wide: Tensor  # the first copy, dequantized


def _copies(count: int, outputs: int, inputs: int, precision: str) -> Copies:
    packed = [_random(count, outputs, inputs, precision) for _ in range(COPIES)]
    return Copies(packed, _widened(packed[0]))


def _random(count: int, outputs: int, inputs: int, precision: str) -> Any:
    if precision == "bf16":
        return experts.Matrices(_normal(count, outputs, inputs, size=inputs**-0.5))
    if precision == "fp8":
        scale = (torch.rand(count, outputs, device="cuda") + 0.5) * inputs**-0.5 / 40
        return experts.Matrices(_normal(count, outputs, inputs, size=40.0, dtype=FP8), scale)
    packed = torch.randint(0, 256, (count, outputs, inputs // 2), device="cuda", dtype=torch.uint8)
    scale = (torch.rand(count, outputs, inputs // GROUP[precision], device="cuda") + 0.5) * inputs**-0.5 / 4
    if precision == "int4":
        return FourBitMatrices("int4", packed, scale.bfloat16())
    if precision == "uint4":
        offset = -8 * scale + _normal(*scale.shape, size=inputs**-0.5)
        return FourBitMatrices("uint4", packed, torch.stack((scale, offset), -1).bfloat16())
    return FourBitMatrices("nvfp4", packed, (scale * 1000).to(FP8), torch.full((count, 1), 1000.0, device="cuda"))


def _widened(packed: Any) -> Tensor:
    if isinstance(packed, experts.Matrices):
        wide = packed.weight_EOI.bfloat16()
        return wide if packed.scale_EO is None else wide * packed.scale_EO[..., None].bfloat16()
    nibble = torch.stack((packed.packed_EOB & 15, packed.packed_EOB >> 4), -1).flatten(-2)
    if packed.format == "uint4":
        scale, offset = (t.repeat_interleave(2 * packed.group, -1) for t in packed.scale_EOG.unbind(-1))
        return torch.addcmul(offset, nibble.bfloat16(), scale)
    if packed.format == "int4":
        values, over = torch.arange(16, device="cuda").bfloat16() - 8, 1.0
    else:
        values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], device="cuda").bfloat16()
        over = 1000.0
    scale = (packed.scale_EOG.float() / over).bfloat16()
    return values[nibble.int()] * scale.repeat_interleave(2 * packed.group, -1)


def _bytes(matrices: Any) -> int:
    return sum(tensor.nbytes for tensor in vars(matrices).values() if isinstance(tensor, Tensor))


def _groups(index: Tensor, shape: Shape, precision: str, key: str) -> Callable[[], experts.Groups]:
    """Return a function that groups rows by the current tiling."""
    ready = {size: experts.group(index, shape.experts, size) for size in (16, 32, 64, 128)}

    def now() -> experts.Groups:
        if precision in GROUP:
            return ready[experts_four_bit.choose_tiling(key, precision, shape.tokens).rows]
        table = experts.UP if key == "up" else experts.DOWN
        dtype = FP8 if precision == "fp8" else torch.bfloat16
        return ready[experts.tiling_for(table, dtype, shape.tokens, card_of(index.device)).rows]

    return now


def _hidden(precision: str, pairs: int, width: int) -> Hidden:
    """Allocate the rows between the products, for a second product in this precision."""
    device = torch.device("cuda")
    if precision == "fp8":
        return new_fp8(pairs, width, BLOCK, device)
    if precision in GROUP:
        return new_interleaved(pairs, width, experts_four_bit.depth("down", precision), torch.bfloat16, device)
    return new_plain(pairs, width, torch.bfloat16, device)


def up(shape: Shape, precision: str, then: str | None = None) -> Case:
    """Return the first product, with rows for a second product in the precision `then`; None: the same precision."""
    then = then or precision
    index = torch.randn(shape.tokens, shape.experts, device="cuda").topk(shape.k).indices  # spread over all experts
    x = _normal(shape.tokens, shape.hidden)
    copies = _copies(shape.experts, 2 * shape.expert_width, shape.hidden, precision)
    groups, four_bit = _groups(index, shape, precision, "up"), precision in GROUP
    low, scale = linear.quantize_rows(x) if precision == "fp8" else (x, None)

    def call(i: int) -> Hidden:
        h = _hidden(then, shape.tokens * shape.k, shape.expert_width)
        if four_bit:
            x_interleaved = interleaved(x, experts_four_bit.depth("up", precision))
            experts_four_bit.up_product(x_interleaved, groups(), shape.k, copies.packed[i], h)
        else:
            experts.up_product(low, scale, groups(), shape.k, copies.packed[i], h)
        return h

    def plain() -> Tensor:
        order = groups().order_R.long()
        seen = _rounded(x, shape.hidden) if precision == "fp8" else x
        y = _one_by_one(seen[order // shape.k], index.flatten()[order], copies.wide)
        gate, other = y.chunk(2, -1)
        h = F.gelu(gate, approximate="tanh") * other
        return _rounded(h, BLOCK) if then == "fp8" else h

    def wide(found: Hidden) -> Tensor:
        if found.scale_RB is not None:
            return found.rows_RI.float() * found.scale_RB.repeat_interleave(BLOCK, 1)
        return _straight(found.rows_RI, found.interleave) if found.interleave else found.rows_RI

    flops = 2 * shape.tokens * shape.k * shape.hidden * 2 * shape.expert_width
    return Case(call=call, plain=plain, wide=wide, bytes=_bytes(copies.packed[0]), flops=flops, precision=precision)


def back(shape: Shape, precision: str) -> Case:
    index = torch.randn(shape.tokens, shape.experts, device="cuda").topk(shape.k).indices
    h = _normal(shape.tokens * shape.k, shape.expert_width)
    copies = _copies(shape.experts, shape.hidden, shape.expert_width, precision)
    groups, four_bit = _groups(index, shape, precision, "down"), precision in GROUP
    if four_bit:
        depth = experts_four_bit.depth("down", precision)
        rows = Hidden(interleaved(h, depth), interleave=depth)
    else:
        rows = Hidden(*_blocks(h, BLOCK), BLOCK) if precision == "fp8" else Hidden(h)

    def call(i: int) -> Tensor:
        if four_bit:
            return experts_four_bit.down_product(rows, groups(), shape.k, copies.packed[i])
        return experts.down_product(rows, groups(), shape.k, copies.packed[i], torch.bfloat16)

    def plain() -> Tensor:
        order = groups().order_R.long()
        seen = _rounded(h, BLOCK) if precision == "fp8" else h
        y = torch.empty(len(h), shape.hidden, device="cuda")
        y[order] = _one_by_one(seen, index.flatten()[order], copies.wide)
        return y

    flops = 2 * len(h) * shape.hidden * shape.expert_width
    return Case(call=call, plain=plain, bytes=_bytes(copies.packed[0]), flops=flops, precision=precision)


def _straight(rows: Tensor, depth: int) -> Tensor:
    """Undo `interleaved`."""
    column = interleaved(torch.arange(rows.shape[1], device=rows.device)[None], depth)[0]
    return rows[:, column.argsort()]


def _blocks(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Quantize to FP8 with a scale per `block` columns."""
    parts = x.float().unflatten(1, (-1, block))
    scale = parts.abs().amax(-1).clamp(min=1e-12) / 448
    return (parts / scale[..., None]).clamp(-448, 448).flatten(1).to(FP8), scale


def _rounded(x: Tensor, block: int) -> Tensor:
    low, scale = _blocks(x, block)
    return low.float() * scale.repeat_interleave(block, 1)


def _one_by_one(x: Tensor, expert: Tensor, wide: Tensor) -> Tensor:
    return torch.stack([wide[e].float() @ row.float() for row, e in zip(x, expert.tolist(), strict=True)])


def product(shape: Shape, precision: str, inputs: int, outputs: int, gated: bool = False) -> Case:
    x = _normal(shape.tokens, inputs)
    copies = [_copies(1, outputs, inputs, precision) for _ in range(1 + gated)]
    low, scale = linear.quantize_rows(x) if precision == "fp8" else (x, None)

    def matrix(found: experts.Matrices) -> linear.Matrix:
        return linear.Matrix(found.weight_EOI[0], None if found.scale_EO is None else found.scale_EO[0])

    ready = [[matrix(each.packed[i]) for each in copies] for i in range(COPIES)]

    def call(i: int) -> Tensor:
        if gated:
            return linear.gated(low, ready[i][0], ready[i][1], scale, torch.bfloat16)
        return linear.linear(low, ready[i][0], scale, torch.bfloat16)

    def plain() -> Tensor:
        seen = _rounded(x, inputs) if precision == "fp8" else x.float()
        first, *more = (seen @ each.wide[0].float().T for each in copies)
        return F.gelu(first, approximate="tanh") * more[0] if gated else first

    flops = 2 * shape.tokens * inputs * outputs * len(copies)
    size = sum(_bytes(each.packed[0]) for each in copies)
    return Case(call=call, plain=plain, bytes=size, flops=flops, precision=precision)


def route(shape: Shape) -> Case:
    x, weight = _normal(shape.tokens, shape.hidden), _normal(shape.experts, shape.hidden, size=0.05)
    scale = torch.rand(shape.experts, device="cuda").bfloat16()

    def call(i: int) -> Tensor:
        return rows.route(x, weight, scale, shape.k)[1]

    def plain() -> Tensor:
        return expert_route(F.linear(x, weight), scale, shape.k)[1]

    return Case(call=call, plain=plain, bytes=weight.nbytes + x.nbytes, flops=0, precision="bf16")


def add_norms(shape: Shape) -> Case:
    x, y = (_normal(shape.tokens, shape.hidden) for _ in range(2))
    weight, first, second, scale = (_normal(shape.hidden) for _ in range(4))
    then = [NextNorm(first, None), NextNorm(second, None)]
    given = x, y, weight, then, scale, shape.hidden**-0.5, 1e-6

    def call(i: int) -> Any:
        return rows.add_norms(*given)[1]

    def plain() -> Tensor:
        return _together(reference.add_norms(*given)[1])

    return Case(call=call, plain=plain, wide=_together, bytes=6 * x.nbytes, flops=0, precision="bf16")


def join(shape: Shape) -> Case:
    x, dense, sparse = (_normal(shape.tokens, shape.hidden) for _ in range(3))
    weights, then = [_normal(shape.hidden) for _ in range(3)], NextNorm(_normal(shape.hidden), None)
    given = x, dense, sparse, weights, _normal(shape.tokens, 1), 1e-6, then

    def call(i: int) -> Any:
        return rows.join(*given)

    def plain() -> Tensor:
        return _together(reference.join(*given))

    return Case(call=call, plain=plain, wide=_together, bytes=5 * x.nbytes, flops=0, precision="bf16")
