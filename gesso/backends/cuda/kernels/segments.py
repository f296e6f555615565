"""Tables on the device that tell the kernels of `attention.py` which tokens attend to which.

They hold everything that changes from step to step. A captured CUDA graph stays valid while texts grow and cache rows
are reassigned, because the same tensors are filled again.

S segments, M key/value heads, D head dim, L capacity of a cache row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import triton.language as tl
from torch import Tensor

from gesso.diffusion.hash import send

# Texts of at most so many tokens are split like a canvas: a single token has only one tile per head.
SHORT = tl.constexpr(16)

# The columns of `Table.segments_S7`.
OFFSET = tl.constexpr(0)  # index in T of the segment's first token
LENGTH = tl.constexpr(1)  # 0: nothing to do
START = tl.constexpr(2)  # position of the first token in its row
CAUSAL = tl.constexpr(3)  # 0: a canvas; 1: text; BLOCK: text that also sees all of itself
CACHED = tl.constexpr(4)  # tokens of the row that were in the cache before this call
FRESH = tl.constexpr(5)  # index in T of the tokens from CACHED to START: earlier text of the same call
END = tl.constexpr(6)  # tokens of the row after this call
COLUMNS = tl.constexpr(7)
BLOCK = tl.constexpr(2)


@dataclass(frozen=True)
class Segment:
    """The tokens of one piece: text, which is appended to its cache row, or a canvas, which is not."""

    row: int
    start: int  # position of the first token: the number of tokens before it in the row
    length: int
    causal: bool
    room: int = 0  # tokens of its part of T: the rest is padding; 0: as many as `length`
    slot: int = -1  # of its adapter; -1: the base model
    block: bool = False  # text whose tokens see each other: an image

    @property
    def size(self) -> int:
        """The number of tokens in T, with padding."""
        return self.room or self.length


class CacheRows(Protocol):
    """The cache of one layer: `k[row]` and `v[row]` are [L, M, D], and position p is in slot p % L."""

    window: int | None
    k: list[Tensor]
    v: list[Tensor]


@dataclass(frozen=True)
class Table:
    """The attention pattern of one layer. The tensors may be filled again; the other fields are fixed in a captured
    launch.

    The tensors hold addresses and keep nothing alive. A row that grows moves, and needs a new table.
    """

    segments_S7: Tensor  # int32, the columns above: the same for all layers
    rows_S3: Tensor  # int64: addresses of the row's keys and of its values, its capacity L
    longest: int  # no segment has more tokens
    appends: bool  # whether a segment is text
    window: int | None
    parts: bool = True  # whether there may be canvases or short texts, whose keys are split
    pads: bool = False  # whether there may be padding
    blocks: bool = False  # whether a segment is a block


def _is_split(segment: Segment) -> bool:
    return not segment.causal or segment.length <= SHORT.value


def tables(caches: Sequence[CacheRows], segments: Sequence[Segment], longest: int) -> list[Table]:
    """Return the table of every layer, for segments of at most `longest` tokens.

    All layers together take two copies to the device, not two each.
    """
    device = caches[0].k[segments[0].row].device
    segments_S7 = torch.tensor(_columns(segments), dtype=torch.int32, device=device)
    rows = torch.tensor([_rows(segments, cache) for cache in caches], device=device)
    texts, pads = any(segment.causal for segment in segments), any(segment.room for segment in segments)
    blocks = any(segment.block for segment in segments)
    return [
        Table(segments_S7, rows_S3, longest, texts, cache.window, any(map(_is_split, segments)), pads, blocks)
        for rows_S3, cache in zip(rows.unbind(), caches, strict=True)
    ]


def move(attends: Sequence[Any], caches: Sequence[CacheRows], segments: Sequence[Segment], same_rows: bool) -> None:
    """Fill the tables of these layers with other segments. All layers share the segment tensor of the first."""
    tables = [each.keywords["table"] for each in attends]
    device = tables[0].segments_S7.device
    tables[0].segments_S7.copy_(send(torch.tensor(_columns(segments), dtype=torch.int32), device))
    if not same_rows:
        rows = torch.tensor([_rows(segments, cache) for cache in caches])
        for table, rows_S3 in zip(tables, send(rows, device).unbind(), strict=True):
            table.rows_S3.copy_(rows_S3)


def _columns(segments: Sequence[Segment]) -> list[list[int]]:
    """Return the columns of `segments_S7`.

    The texts of one row must be adjacent in T: later segments read them as one contiguous range. Only the last one may
    be elsewhere: a draft to verify comes after a canvas that does not see it.
    """
    columns, offset = [], 0
    apart: set[int] = set()  # rows whose last text is elsewhere
    # by row: first position and token of its text, and the position after its last
    texts: dict[int, tuple[int, int, int]] = {}
    for segment in segments:
        cached, fresh, end = texts.get(segment.row, (segment.start, offset, segment.start))
        if segment.start != end or segment.row in apart:
            raise ValueError(
                f"text of row {segment.row} at position {segment.start} does not follow the earlier text of that row, "
                f"which ends at position {end}, token {fresh + end - cached}; put the pieces of a row next to each "
                "other, in order"
            )
        causal = BLOCK.value if segment.block else int(segment.causal)
        columns.append([offset, segment.length, segment.start, causal, cached, fresh])
        if segment.causal:
            if segment.length and offset != fresh + end - cached:
                apart.add(segment.row)
            texts[segment.row] = cached, fresh, end + segment.length
        offset += segment.size
    return [[*column, texts.get(segment.row, (0, 0, 0))[2]] for column, segment in zip(columns, segments, strict=True)]


def _rows(segments: Sequence[Segment], cache: CacheRows) -> list[list[int]]:
    """Return the `rows_S3` of one layer. Segments may share a row: unused ones name that of another."""
    found = {row: _row(row, cache) for row in {segment.row for segment in segments}}
    return [found[segment.row] for segment in segments]


def _row(row: int, cache: CacheRows) -> list[int]:
    k_LMD, v_LMD = cache.k[row], cache.v[row]
    for tensor in (k_LMD, v_LMD):
        if not tensor.is_contiguous() or tensor.data_ptr() % 16:
            raise ValueError(f"row {row} of the cache must be contiguous and start at a multiple of 16 bytes")
    return [k_LMD.data_ptr(), v_LMD.data_ptr(), len(k_LMD)]
