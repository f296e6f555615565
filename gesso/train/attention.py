"""Attention of a training pass, in which text and canvases of an example run side by side.

B examples, S text, K canvases per example, C canvas, L = S + K·C, T = B·L, N query heads, M key/value heads, D head
dim.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from gesso.train.batch import Batch

Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # example, head, query, key (indices of any shape) to bool


def visibility(batch: Batch, canvas_length: int, window: int | None) -> Sees:
    """Return the mask as a function: text attends causally, a canvas to itself and to the text before its start.

    In a sliding layer, text attends to the last `window` tokens including its own. Every position of a canvas attends
    to the last `window - 1` tokens before the canvas. Padding attends to itself only, so that no row is empty.
    """
    width = batch.text_BS.shape[1]
    reach = width + 1 if window is None else window
    length_B, start_BK, present_BK = batch.valid_BS.sum(-1), batch.start_BK, batch.present_BK

    def sees(b: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        text_q, text_k = q < width, k < width
        canvas_q, canvas_k = (torch.clamp(i - width, min=0) // canvas_length for i in (q, k))
        start = start_BK[b, canvas_q]
        of_text = (k <= q) & (k > q - reach)
        of_canvas = (k < start) & (k > start - reach)
        text = text_k & (k < length_B[b]) & torch.where(text_q, of_text, of_canvas)
        canvas = ~text_q & ~text_k & (canvas_q == canvas_k) & present_BK[b, canvas_k]
        return text | canvas | (q == k)

    return sees


def dense_mask(sees: Sees, rows: int, width: int, device: torch.device) -> Tensor:
    """Return the mask of all pairs [B, 1, L, L]."""
    b, head, q, k = torch.meshgrid(
        *(torch.arange(size, device=device) for size in (rows, 1, width, width)), indexing="ij"
    )
    return sees(b, head, q, k)


def masked_attention(q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, mask_BLL: Tensor) -> Tensor:
    q, k, v = (x.unflatten(0, (len(mask_BLL), -1)).transpose(1, 2) for x in (q_TND, k_TMD, v_TMD))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_BLL, scale=1.0, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(0, 1)


def split_attention(
    q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, rows: int, width: int, canvases: int, start: int
) -> Tensor:
    """Attend without a mask, for batches whose canvases all start at `start` and windows that cover the text."""
    q, k, v = (x.unflatten(0, (rows, -1)).transpose(1, 2) for x in (q_TND, k_TMD, v_TMD))
    attend = partial(F.scaled_dot_product_attention, scale=1.0, enable_gqa=q.shape[1] != k.shape[1])
    text_BNSD = attend(q[:, :, :width], k[:, :, :width], v[:, :, :width], is_causal=True)

    def of_canvases(x: Tensor) -> Tensor:  # [B, K, N, C, D]
        return x[:, :, width:].unflatten(2, (canvases, -1)).transpose(1, 2)

    def seen(x: Tensor) -> Tensor:
        text = x[:, None, :, :start].expand(-1, canvases, -1, -1, -1)
        return torch.cat([text, of_canvases(x)], dim=3).flatten(0, 1)

    canvas = attend(of_canvases(q).flatten(0, 1), seen(k), seen(v)).unflatten(0, (rows, canvases))
    canvas_BNLD = canvas.transpose(1, 2).flatten(2, 3)
    return torch.cat([text_BNSD, canvas_BNLD], dim=2).transpose(1, 2).flatten(0, 1)


def block_attention(q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, blocks: BlockMask, rows: int) -> Tensor:
    """Attend with a compiled GPU kernel that skips fully masked blocks."""
    # Autocast does not cover this operation: rotary embedding leaves queries and keys in the dtype of the weights.
    q, k, v = (x.to(v_TMD.dtype).unflatten(0, (rows, -1)).transpose(1, 2) for x in (q_TND, k_TMD, v_TMD))
    out = flex_attention(q, k, v, block_mask=blocks, scale=1.0, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(0, 1)
