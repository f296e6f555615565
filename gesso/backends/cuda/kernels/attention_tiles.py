"""Choose the tiles of the attention kernels: the rows, keys and values of a program, and its warps and stages.

Letters as in `attention.py`.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from gesso.backends.cuda.kernels.gluon_kernels import gluon_kernels
from gesso.backends.cuda.kernels.linear import MANY
from gesso.cards.card import Card


@dataclass(frozen=True)
class Tiles:
    rows: int  # R
    keys: int  # B
    values: int  # V: each program computes this many of the D components of its outputs
    warps: int
    stages: int  # blocks of keys and values in flight
    splits: int = 1  # P defines the order of a canvas' sums, so it must never depend on the rest of the batch
    roles: bool = False  # warps with separate roles: `attention_hopper.py`

    def shared_bytes(self, dim: int, itemsize: int, card: Card) -> int:
        """Return the shared memory of the queries, and of the blocks of keys and values in flight."""
        blocks = card.tiles_in_memory(self.stages)
        return itemsize * (self.rows * dim + blocks * self.keys * (dim + self.values))


# For head dimensions above 256, and for others, where V is at most D. On one card, all tiles of a head dimension have
# the same keys, and 16 rows per warp, so they give the same bits.
WIDE = (
    Tiles(rows=128, keys=64, values=256, warps=8, stages=1, splits=2),
    Tiles(rows=64, keys=32, values=256, warps=4, stages=1, splits=2),
    Tiles(rows=64, keys=16, values=256, warps=4, stages=1, splits=2),
)
NARROW = (
    Tiles(rows=128, keys=32, values=256, warps=8, stages=3, splits=4),
    Tiles(rows=64, keys=32, values=256, warps=4, stages=3, splits=4),
    Tiles(rows=64, keys=32, values=256, warps=4, stages=2, splits=4),
)
FLOAT32 = (
    Tiles(rows=32, keys=16, values=128, warps=4, stages=1, splits=2),
    Tiles(rows=16, keys=16, values=128, warps=4, stages=1, splits=2),
)


def _has_roles(card: Card) -> bool:
    """Return whether kernels whose warps have separate roles run on this card."""
    return card.has_warp_group_products and gluon_kernels("attention_hopper") is not None


@lru_cache
def tiles(dim: int, dtype: torch.dtype, card: Card, rows: int = MANY) -> Tiles:
    """Return the first tiles of a table that fit the card's shared memory.

    The first of each table are for a Hopper SM: 227 KB of shared memory, 65,536 registers, at most 255 of them per
    thread. Those for cards with less have not been measured.

    Every tile of rows reads all its keys and values, most of them from the L2 cache, which delivers some 40 KB per
    microsecond to each of the 132 SMs. 64 keys and values with D 256 are 64 KB, and 128 rows keep the tensor cores busy
    with them for 1.4 microseconds; 64 rows would wait for the cache instead. So R = 128.

    The accumulators of the outputs, R x V in float32, stay in registers: 128 x 256 over eight warps is 128 per thread.
    The scores (R x B), the weights computed from them and the addresses of the keys take the rest. Shared memory holds
    the queries, R x D, and `stages` blocks of keys, B x D, and of values, B x V, two bytes per element.

      D 256:  64 + 3 x (16 + 16) = 160 KB with 32 keys. With 64 keys only two stages fit, and nothing is prefetched.
      D 512:  128 + 64 + 32 = 224 KB with 64 keys. All of the 128 x 512 accumulators would take 256 registers. With 16
              warps each would hold half, but both halves would compute all scores, because scores are split by rows
              only. Two programs with half of the values each have the same cost.

    With separate roles, a part of a block is refilled as soon as it has been multiplied, so fewer stages are enough:
    two with 64 keys and D 256, one with D 512.

    One canvas of 256 tokens and 16 query heads is then 32 programs (D 256, 8 key heads) or 64 (D 512, 2 key heads,
    halves of the values). With its keys in 4 and in 2 splits both are 128, whatever the length of the text. More splits
    cost more than they gain: each is written, read again and rounded to two bytes in between, 8.4 MB per canvas and
    layer in both cases (and about a quarter more rounding error in the output than one sum has).

    If the `rows` of every segment fit into half a tile, they get half a tile: a large one would be mostly empty, and as
    slow as a full one. Both have 16 rows per warp and the same blocks of keys, so they use the same matrix instruction,
    spread a row over the same threads, and give the same bits. A tile of 16 rows would not: its warps would share each
    row.

    float32 does not use tensor cores, which would round to ten bits. It is there for comparison, not for speed.
    """
    table = FLOAT32 if dtype == torch.float32 else WIDE if dim > 256 else NARROW
    sized = (replace(each, values=min(dim, each.values)) for each in table)
    chosen = next(each for each in sized if each.shared_bytes(dim, dtype.itemsize, card) <= card.block_bytes)
    if dtype == torch.bfloat16 and dim in (256, 512) and _has_roles(card):
        return _hopper_tiles(chosen, dim, rows)
    if dtype != torch.float32 and rows <= 64:
        return replace(chosen, rows=64, warps=4)
    return chosen


def _hopper_tiles(plain: Tiles, dim: int, rows: int) -> Tiles:
    """Return tiles with separate roles, or half of one without them; both have blocks of 64 keys."""
    if dim > 256:
        return replace(plain, rows=64, warps=4) if rows <= 64 else replace(plain, warps=4, roles=True)
    if rows <= 64:
        return replace(plain, rows=64, keys=64, warps=4)
    return replace(plain, keys=64, warps=4, stages=2, roles=True)
