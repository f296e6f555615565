"""What the kernels of `attention.py` are told: who attends to what, as tensors on the device.

All that changes from step to step is in them. A captured CUDA graph stays valid while texts grow and rows change hands,
for they are filled anew.

S segments, M key/value heads, D head dim, L capacity of a cache row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import triton.language as tl
from torch import Tensor

from gesso.diffusion.hash import send

SHORT = tl.constexpr(16)  # tokens up to which a text is cut into parts like a canvas: one alone has but one tile a head

# The columns of `Table.segments_S7`.
OFFSET = tl.constexpr(0)  # its first token in T
LENGTH = tl.constexpr(1)  # 0: nothing to do
START = tl.constexpr(2)  # position of the first token in its row
CAUSAL = tl.constexpr(3)
CACHED = tl.constexpr(4)  # tokens of the row that were in the cache before this call
FRESH = tl.constexpr(5)  # where in T those from CACHED to START are: earlier text of the same call
END = tl.constexpr(6)  # tokens of the row after this call
COLUMNS = tl.constexpr(7)


@dataclass(frozen=True)
class Segment:
    """The tokens of one piece: text, which is appended to its row of the cache, or a canvas, which is not."""

    row: int
    start: int  # position of the first token: the number of tokens before it in the row
    length: int
    causal: bool


class CacheRows(Protocol):
    """One layer's cache: `k[row]` and `v[row]` are [L, M, D], and position p lies in slot p % L."""

    window: int | None
    k: list[Tensor]
    v: list[Tensor]


@dataclass(frozen=True)
class Table:
    """Who attends to what. The tensors are on the device and may be filled anew; the rest is baked into the launch.

    They hold addresses and keep nothing alive: a row that grows moves, and needs a new table.
    """

    segments_S7: Tensor  # int32, the columns above: the same for all layers
    rows_S3: Tensor  # int64: addresses of the row's keys and of its values, its capacity L
    longest: int  # no segment has more tokens
    appends: bool  # whether there is text among the segments
    window: int | None
    parts: bool = True  # whether there may be canvases or short texts


def _in_parts(segment: Segment) -> bool:
    return not segment.causal or segment.length <= SHORT.value


def tables(caches: Sequence[CacheRows], segments: Sequence[Segment]) -> list[Table]:
    """Of every layer. What all of them hold goes to the device in two copies, not two a layer."""
    device = caches[0].k[segments[0].row].device
    segments_S7 = torch.tensor(_columns(segments), dtype=torch.int32, device=device)
    rows = torch.tensor([[_row(segment, cache) for segment in segments] for cache in caches], device=device)
    longest, texts = max(segment.length for segment in segments), [segment.causal for segment in segments]
    return [
        Table(segments_S7, rows_S3, longest, any(texts), cache.window, any(map(_in_parts, segments)))
        for rows_S3, cache in zip(rows.unbind(), caches, strict=True)
    ]


def move(attends: Sequence[Any], caches: Sequence[CacheRows], segments: Sequence[Segment], same_rows: bool) -> None:
    """Other segments in the tensors of these tables. All layers have the first one's segments."""
    tables = [each.keywords["table"] for each in attends]
    device = tables[0].segments_S7.device
    tables[0].segments_S7.copy_(send(torch.tensor(_columns(segments), dtype=torch.int32), device))
    if not same_rows:
        rows = torch.tensor([[_row(segment, cache) for segment in segments] for cache in caches])
        for table, rows_S3 in zip(tables, send(rows, device).unbind(), strict=True):
            table.rows_S3.copy_(rows_S3)


def _columns(segments: Sequence[Segment]) -> list[list[int]]:
    """Texts of one row in one call must stand next to each other: what follows reads them as one stretch of T."""
    columns, offset = [], 0
    texts: dict[int, tuple[int, int, int]] = {}  # by row: its stretch's first position and token, and where it ends
    for segment in segments:
        cached, fresh, end = texts.get(segment.row, (segment.start, offset, segment.start))
        if segment.start != end or (segment.causal and offset != fresh + end - cached):
            raise ValueError(
                f"text of row {segment.row} at position {segment.start} does not follow its text before it, which ends "
                f"at position {end}, token {fresh + end - cached}; put the pieces of a row next to each other, in order"
            )
        columns.append([offset, segment.length, segment.start, int(segment.causal), cached, fresh])
        if segment.causal:
            texts[segment.row] = cached, fresh, end + segment.length
        offset += segment.length
    return [[*column, texts.get(segment.row, (0, 0, 0))[2]] for column, segment in zip(columns, segments, strict=True)]


def _row(segment: Segment, cache: CacheRows) -> list[int]:
    k_LMD, v_LMD = cache.k[segment.row], cache.v[segment.row]
    for tensor in (k_LMD, v_LMD):
        if not tensor.is_contiguous() or tensor.data_ptr() % 16:
            raise ValueError(f"row {segment.row} of the cache must be contiguous and start at a multiple of 16 bytes")
    return [k_LMD.data_ptr(), v_LMD.data_ptr(), len(k_LMD)]
