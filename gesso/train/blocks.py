"""Attention of a training pass as few calls on dense blocks: which queries share a call, and with which keys.

A block is a run of queries and all keys that any of them attends to: one range of text and, for a canvas, the canvas.
Blocks of one shape form a group, which is attended in one call.

S text of all examples, C canvas, T tokens, U blocks of a group, Q queries of a block, L keys of a block.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gesso.diffusion.hash import send
from gesso.train.layout import Ints, Layout

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class BlockSizes:
    """The limits on blocks and groups."""

    queries: int = 512  # of a block, at most
    round_keys: int = 256  # blocks whose keys round up to the same multiple of this share a group, under a mask
    pairs: int = 1 << 21  # of a group, at most, unless one block has more: bounds the memory of the scores


SIZES = BlockSizes()


@dataclass(frozen=True)
class BlockGroup:
    """Blocks of one shape: indices of their queries and keys, and the mask between them."""

    query_UQ: Tensor
    key_UL: Tensor
    mask_UQL: Tensor | None
    causal: bool  # the mask is a triangle: queries and keys of a block are the same tokens of one example


def attention_groups(
    layout: Layout, window: int | None, device: torch.device, sizes: BlockSizes = SIZES
) -> list[BlockGroup]:
    """Return groups whose blocks contain every query once, without waiting for the device."""
    low_T, high_T = layout.ranges(window)
    blocks = _blocks(layout, low_T, high_T, sizes.queries)
    shape = np.stack([blocks.queries, -(-blocks.keys // sizes.round_keys), blocks.causal, blocks.dense], axis=1)
    members = []
    for group_shape in np.unique(shape, axis=0):
        alike = np.flatnonzero((shape == group_shape).all(1))
        pairs_per_block = int(group_shape[0] * blocks.keys[alike].max())
        most = max(1, sizes.pairs // pairs_per_block)
        members += np.split(alike, range(most, len(alike), most))
    range_2T = send(torch.from_numpy(np.stack([low_T, high_T])), device)
    table = np.stack([blocks.first, blocks.low, blocks.high, blocks.canvas, blocks.keys], axis=1)
    tables = send(torch.from_numpy(table[np.concatenate(members)]), device).split([len(chosen) for chosen in members])
    groups = []
    for chosen, table_U5 in zip(members, tables, strict=True):
        keys_U = blocks.keys[chosen]
        causal = bool(blocks.causal[chosen[0]])
        same_keys = bool((keys_U == keys_U[0]).all())
        masked = not causal and not (blocks.dense[chosen[0]] and same_keys)
        queries = int(blocks.queries[chosen[0]])
        keys = int(keys_U.max())
        groups.append(_group(table_U5, range_2T if masked else None, layout, queries, keys, causal))
    return groups


@dataclass(frozen=True)
class _BlockTable:
    """Blocks as columns, with one value per block."""

    first: Ints  # query
    queries: Ints
    low: Ints  # range of the text
    high: Ints
    canvas: Ints  # first token of the canvas; 0 in text
    keys: Ints  # text and canvas
    causal: Ints  # see BlockGroup
    dense: Ints  # every query attends to every key


def _blocks(layout: Layout, low_T: Ints, high_T: Ints, most: int) -> _BlockTable:
    # Texts of one length are cut separately: their blocks have few shapes and need no mask between examples. Otherwise
    # a block may contain the end of one text and the next ones.
    alike = np.ptp(layout.width_B) == 0
    first, queries = _cut(0, layout.text, int(layout.width_B[0]) if alike else layout.text, most)
    last = first + queries - 1
    low, high = low_T[first], high_T[last]  # neither decreases along the text
    text = _BlockTable(
        first=first,
        queries=queries,
        low=low,
        high=high,
        canvas=np.zeros_like(first),
        keys=high - low,
        causal=(low == first) & (low_T[last] == first) & ~_any_between(layout.image_N2, first, last + 1),
        dense=np.zeros_like(first),
    )

    length = layout.canvas_length
    first, queries = _cut(layout.text, layout.tokens, length, most)
    low, high = low_T[first], high_T[first]
    canvases = _BlockTable(
        first=first,
        queries=queries,
        low=low,
        high=high,
        canvas=layout.text + (first - layout.text) // length * length,
        keys=high - low + length,
        causal=np.zeros_like(first),
        dense=np.ones_like(first),
    )
    return _BlockTable(**{name: np.concatenate([getattr(text, name), getattr(canvases, name)]) for name in vars(text)})


def _any_between(image_N2: Ints, first: Ints, end: Ints) -> Bools:
    """Return for each block of queries whether it has tokens of an image that attend to later ones."""
    touches: Bools = (image_N2[:, 0] < end[:, None]) & (image_N2[:, 1] > first[:, None])
    return np.logical_or.reduce(touches, axis=1)


def _cut(begin: int, end: int, period: int, most: int) -> tuple[Ints, Ints]:
    """Return starts and lengths of blocks of at most `most` queries over a range that is also cut at multiples of
    `period`."""
    offset = np.arange(0, period, most)
    first = (np.arange(begin, end, period)[:, None] + offset).ravel()
    queries = np.minimum(most, period - offset)
    return first, np.tile(queries, len(first) // len(offset))


def _group(
    table_U5: Tensor, range_2T: Tensor | None, layout: Layout, queries: int, keys: int, causal: bool
) -> BlockGroup:
    """Return the group of some blocks, with a mask if the ranges of all tokens are given."""
    device = table_U5.device
    first_U1, low_U1, high_U1, canvas_U1, keys_U1 = table_U5.split(1, dim=1)
    query_UQ = first_U1 + torch.arange(queries, device=device)
    place_L = torch.arange(keys, device=device)
    text_U1 = high_U1 - low_U1
    # A block with fewer keys than its group repeats some tokens, which the mask excludes.
    canvas_UL = (canvas_U1 + place_L - text_U1).clamp(0, layout.tokens - 1)
    key_UL = torch.where(place_L < text_U1, low_U1 + place_L, canvas_UL)
    if range_2T is None:
        return BlockGroup(query_UQ=query_UQ, key_UL=key_UL, mask_UQL=None, causal=causal)
    low_UQ1, high_UQ1 = range_2T[:, query_UQ][..., None]
    key_U1L = key_UL[:, None]
    visible_UQL = (key_U1L >= low_UQ1) & (key_U1L < high_UQ1) | (key_U1L >= layout.text)
    mask_UQL = visible_UQL & (place_L < keys_U1)[:, None]
    return BlockGroup(query_UQ=query_UQ, key_UL=key_UL, mask_UQL=mask_UQL, causal=causal)
