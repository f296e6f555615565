"""Attention of a training pass, on dense blocks of the sequence or with a compiled GPU kernel.

T tokens, N query heads, M key/value heads, G = N/M queries per key head, D head dim, U blocks of a group, Q queries of
a block, L keys of a block, P = U·M.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from gesso.diffusion.hash import send
from gesso.train.blocks import BlockGroup
from gesso.train.layout import Layout

FUSED_DIM = 256  # largest head of the fused GPU kernels; FlexAttention exceeds the shared memory of an H200 above it
TILE = 128  # of FlexAttention


@torch.compiler.disable  # type: ignore[untyped-decorator]  # groups change with the batch, and each would be compiled
def block_attention(q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, groups: Sequence[BlockGroup]) -> Tensor:
    """Attend group by group. Memory for the backward pass grows with the tokens, not with their pairs."""
    # Rotary embedding leaves queries and keys in the dtype of the weights, whatever autocast has chosen for the values.
    with torch.autocast(v_TMD.device.type, enabled=False):
        q_TND, k_TMD = q_TND.to(v_TMD.dtype), k_TMD.to(v_TMD.dtype)
        out: Tensor = _BlockAttention.apply(q_TND, k_TMD, v_TMD, groups)  # type: ignore[no-untyped-call]
    return out


class _BlockAttention(torch.autograd.Function):
    """Attention whose scores are computed again in the backward pass, one group at a time."""

    @staticmethod
    def forward(ctx: Any, q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, groups: Sequence[BlockGroup]) -> Tensor:
        out_TND = torch.empty_like(q_TND)
        for group in groups:
            key_UL = group.key_UL
            attend = _fused if _has_fused_kernel(q_TND, group) else _products
            out_TND[group.query_UQ] = attend(q_TND[group.query_UQ], k_TMD[key_UL], v_TMD[key_UL], group)
        ctx.groups = groups
        ctx.save_for_backward(q_TND, k_TMD, v_TMD, out_TND)
        return out_TND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_TND: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q_TND, k_TMD, v_TMD, out_TND = ctx.saved_tensors
        dq_TND = torch.empty_like(q_TND)
        # A key is in many blocks: add up in float32.
        dk_TMD, dv_TMD = (torch.zeros_like(x, dtype=torch.float32) for x in (k_TMD, v_TMD))
        for group in ctx.groups:
            query_UQ, key_UL = group.query_UQ, group.key_UL
            gradients = _fused_gradients if _has_fused_kernel(q_TND, group) else _product_gradients
            given = (q_TND[query_UQ], k_TMD[key_UL], v_TMD[key_UL], out_TND[query_UQ], gradient_TND[query_UQ])
            dq_TND[query_UQ], dk_ULMD, dv_ULMD = gradients(*given, group)
            for total, part in ((dk_TMD, dk_ULMD), (dv_TMD, dv_ULMD)):
                total.index_add_(0, key_UL.flatten(), part.flatten(0, 1).float())
        return dq_TND, dk_TMD.to(k_TMD.dtype), dv_TMD.to(v_TMD.dtype), None


def _has_fused_kernel(q_TND: Tensor, group: BlockGroup) -> bool:
    # With a mask and shared key heads, `scaled_dot_product_attention` runs in float32 on most GPUs.
    return q_TND.shape[-1] <= FUSED_DIM and (group.mask_UQL is None or not q_TND.is_cuda)


# --- one group, with a fused kernel ---------------------------------------------------------------------------------


def _fused(q_UQND: Tensor, k_ULMD: Tensor, v_ULMD: Tensor, group: BlockGroup) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q_UQND, k_ULMD, v_ULMD))
    mask = None if group.mask_UQL is None else group.mask_UQL[:, None]
    shared = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=group.causal, scale=1.0, enable_gqa=shared)
    return out.transpose(1, 2)


def _fused_gradients(
    q_UQND: Tensor, k_ULMD: Tensor, v_ULMD: Tensor, out_UQND: Tensor, gradient_UQND: Tensor, group: BlockGroup
) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        q, k, v = (x.requires_grad_() for x in (q_UQND, k_ULMD, v_ULMD))
        return torch.autograd.grad(_fused(q, k, v, group), (q, k, v), gradient_UQND)


# --- one group, as matrix products ----------------------------------------------------------------------------------


def _products(q_UQND: Tensor, k_ULMD: Tensor, v_ULMD: Tensor, group: BlockGroup) -> Tensor:
    heads = k_ULMD.shape[2]
    q, k, v = (_by_key_head(x, heads) for x in (q_UQND, k_ULMD, v_ULMD))
    return _by_query(torch.bmm(_probabilities(q, k, group).to(v.dtype), v), q_UQND)


def _product_gradients(
    q_UQND: Tensor, k_ULMD: Tensor, v_ULMD: Tensor, out_UQND: Tensor, gradient_UQND: Tensor, group: BlockGroup
) -> tuple[Tensor, ...]:
    heads = k_ULMD.shape[2]
    q, k, v, out, dout = (_by_key_head(x, heads) for x in (q_UQND, k_ULMD, v_ULMD, out_UQND, gradient_UQND))
    p = _probabilities(q, k, group)
    dv = _product(p.to(v.dtype).mT, dout)
    # The gradient of a softmax: p (dp - sum(p dp)), where the sum equals that of dout and out over the head.
    dp = _product(dout, v.mT)
    ds = dp.sub_((dout.float() * out.float()).sum(-1, keepdim=True)).mul_(p).to(q.dtype)
    dk = _product(ds.mT, q)
    return _by_query(torch.bmm(ds, k), q_UQND), _by_query(dk, k_ULMD), _by_query(dv, v_ULMD)


def _probabilities(q_PQD: Tensor, k_PLD: Tensor, group: BlockGroup) -> Tensor:
    blocks, queries = group.query_UQ.shape
    scores = _product(q_PQD, k_PLD.mT)
    mask_UQL = group.mask_UQL
    if group.causal:
        mask_UQL = torch.ones(1, queries, queries, dtype=torch.bool, device=scores.device).tril()
    if mask_UQL is not None:
        scores.view(blocks, -1, *mask_UQL.shape[1:]).masked_fill_(~mask_UQL[:, None], -torch.inf)
    return scores.softmax(-1)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return the batched product in float32. In bfloat16, a score of 16 may be off by 0.06."""
    if a.dtype == torch.float32:
        return torch.bmm(a, b)
    # Only the GPU multiplies narrow factors into a wide result.
    return torch.bmm(a, b, out_dtype=torch.float32) if a.is_cuda else torch.bmm(a.float(), b.float())


def _by_key_head(x_UQND: Tensor, heads: int) -> Tensor:
    """Return [P, G·Q, D]: the queries that share a key head are rows of one product, so keys are never repeated."""
    return x_UQND.unflatten(2, (heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3).flatten(0, 1)


def _by_query(x: Tensor, like_UQND: Tensor) -> Tensor:
    """Undo `_by_key_head`."""
    blocks, queries, _, dim = like_UQND.shape
    return x.view(blocks, -1, queries, dim).transpose(1, 2)


# --- the compiled kernel --------------------------------------------------------------------------------------------


def compiled_attention(q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, blocks: BlockMask) -> Tensor:
    """Attend with FlexAttention, which skips tiles without visible pairs. It is a GPU kernel only if compiled."""
    q, k, v = (x.to(v_TMD.dtype).transpose(0, 1)[None] for x in (q_TND, k_TMD, v_TMD))
    out = flex_attention(q, k, v, block_mask=blocks, scale=1.0, enable_gqa=q.shape[1] != k.shape[1])
    return out[0].transpose(0, 1)


def tile_mask(layout: Layout, window: int | None, device: torch.device, tile: int = TILE) -> BlockMask:
    """Return the mask for `compiled_attention`. Tiles are compared by their ranges, not pair by pair."""
    ranges = np.stack([*layout.ranges(window), *layout.canvas_ranges()]).astype(np.int32)
    low_T, high_T, start_T, end_T = send(torch.from_numpy(ranges), device)

    def attends(b: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k >= low_T[q]) & (k < high_T[q]) | (k >= start_T[q]) & (k < end_T[q])

    tiles = -(-layout.tokens // tile)
    left = torch.arange(tiles, device=device) * tile
    right = left + tile
    some = torch.zeros(tiles, tiles, dtype=torch.bool, device=device)  # whether any pair of the tile is visible
    every = some.clone()  # whether all are
    for first_T, past_T in ((low_T, high_T), (start_T, end_T)):
        # Queries after the end of the sequence attend to nothing and must not count.
        lowest_first = _by_tile(first_T, tile, fill=layout.tokens).amin(1)
        highest_past = _by_tile(past_T, tile, fill=0).amax(1)
        some |= (left < highest_past[:, None]) & (right > lowest_first[:, None])
        highest_first = _by_tile(first_T, tile, fill=0).amax(1)
        lowest_past = _by_tile(past_T, tile, fill=layout.tokens).amin(1)
        every |= (left >= highest_first[:, None]) & (right <= lowest_past[:, None])

    partial_count, partial_indices = _counts_and_indices(some & ~every)
    full_count, full_indices = _counts_and_indices(every)
    return BlockMask.from_kv_blocks(
        kv_num_blocks=partial_count,
        kv_indices=partial_indices,
        full_kv_num_blocks=full_count,
        full_kv_indices=full_indices,
        BLOCK_SIZE=tile,
        mask_mod=attends,
        seq_lengths=(layout.tokens, layout.tokens),
    )


def _by_tile(x_T: Tensor, tile: int, fill: int) -> Tensor:
    """Return the values of each tile [tiles, tile], with `fill` after the end of the sequence."""
    return F.pad(x_T, (0, -len(x_T) % tile), value=fill).view(-1, tile)


def _counts_and_indices(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of chosen key tiles per query tile, and their indices before those of the others."""
    count = chosen.sum(-1, dtype=torch.int32)
    indices = chosen.int().argsort(dim=-1, descending=True, stable=True).int()
    return count[None, None], indices[None, None]
