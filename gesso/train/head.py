"""The loss of tokens over the vocabulary, without the logits of more than a few rows in memory at once.

T tokens, R rows of a chunk, H hidden, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.model.transformer import softcapped_logits

# Bytes of float32 logits in memory at once: more for a head that is trained, whose chunks are also compiled.
CHUNK_BYTES, FROZEN_CHUNK_BYTES = 512 * 2**20, 128 * 2**20


def token_losses(
    hidden: Tensor,
    head_VH: Weight,
    target: Tensor,
    softcap: float,
    certainty: Tensor | None = None,
    of_chunk: Callable[..., Tensor] | None = None,
    rows: int | None = None,
) -> Tensor:
    """Return the cross-entropy of every token, in the shape of `target`.

    Where the argmax is the target, the entropy of the prediction, weighted by `certainty`, is added to the loss. Logits
    of `rows` tokens are in memory at once, by default as many as `chunk_rows` allows.
    """
    if not target.numel():
        return hidden.new_zeros(target.shape, dtype=torch.float32)
    hidden_TH, target_T = hidden.flatten(0, -2), target.flatten()
    certainty_T = None if certainty is None else certainty.flatten()
    rows = rows or chunk_rows(head_VH)
    if is_frozen(head_VH):
        frozen = hidden_TH, head_VH, target_T, softcap, certainty_T, rows
        losses_T: Tensor = FrozenHeadLoss.apply(*frozen)  # type: ignore[no-untyped-call]
        return losses_T.view(target.shape)
    parts = _split(rows, hidden_TH, target_T, certainty_T)
    of_chunk = of_chunk or chunk_loss
    losses = [
        checkpoint(of_chunk, h_RH, head_VH, target_R, softcap, certainty_R, use_reentrant=False)
        for h_RH, target_R, certainty_R in parts
    ]
    return torch.cat(losses).view(target.shape)


def chunk_loss(
    hidden_RH: Tensor, head_VH: Tensor, target_R: Tensor, softcap: float, certainty_R: Tensor | None
) -> Tensor:
    logits_RV = softcapped_logits(hidden_RH, head_VH, softcap)
    loss_R = F.cross_entropy(logits_RV, target_R, reduction="none")
    return loss_R if certainty_R is None else loss_R + certainty_R * entropy_if_right(logits_RV, target_R)


def entropy_if_right(logits_RV: Tensor, target_R: Tensor) -> Tensor:
    """Return the entropy of each prediction whose argmax is the target, and zero for the others.

    The certainty term of dParallel (arXiv 2509.26488): a right prediction should be certain too, so that it is accepted
    at once. A wrong one gets no such gradient.
    """
    log_RV = logits_RV.log_softmax(-1)
    return torch.where(logits_RV.argmax(-1) == target_R, -(log_RV.exp() * log_RV).sum(-1), 0.0)


class FrozenHeadLoss(Function):
    """The losses under a head that is not trained.

    The gradient of the hidden states is computed with the loss, because it only has to be multiplied by the gradient of
    each token's loss later. So logits are computed once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        head_VH: Weight,
        target_T: Tensor,
        softcap: float,
        certainty_T: Tensor | None,
        rows: int,
    ) -> Tensor:
        losses, slopes = [], []
        for h_RH, target_R, certainty_R in _split(rows, hidden_TH, target_T, certainty_T):
            raw_RV = F.linear(h_RH, head_VH)  # type: ignore[arg-type]
            tanh_RV = (raw_RV.float() / softcap).tanh_()
            logits_RV = softcap * tanh_RV
            total_R1 = logits_RV.logsumexp(-1, keepdim=True)
            losses.append(total_R1.squeeze(-1) - logits_RV.gather(-1, target_R[:, None]).squeeze(-1))
            forcing_RV = None  # the gradient of the certainty term by the logits
            if certainty_R is not None:
                weight_R = certainty_R * (logits_RV.argmax(-1) == target_R)
                log_RV = logits_RV - total_R1
                entropy_R = -(log_RV.exp() * log_RV).sum(-1)
                losses[-1] = losses[-1] + weight_R * entropy_R
                forcing_RV = log_RV.add_(entropy_R[:, None]).mul_(-weight_R[:, None])  # times the probability, below
            if ctx.needs_input_grad[0]:
                slope_RV = logits_RV.sub_(total_R1).exp_()
                if forcing_RV is not None:
                    slope_RV.mul_(forcing_RV.add_(1.0))
                slope_RV.scatter_add_(-1, target_R[:, None], slope_RV.new_full((len(target_R), 1), -1.0))
                slope_RV.mul_(tanh_RV.square_().neg_().add_(1.0))  # the derivative of the softcap
                slopes.append(torch.matmul(slope_RV.to(raw_RV.dtype), head_VH).to(h_RH.dtype))  # type: ignore[arg-type]
        if slopes:
            ctx.save_for_backward(torch.cat(slopes))
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (slope_TH,) = ctx.saved_tensors
        return (slope_TH * gradients[0][:, None]).to(slope_TH.dtype), None, None, None, None, None


def is_frozen(weight: Weight) -> bool:
    return isinstance(weight, Packed) or not weight.requires_grad


def chunk_rows(head_VH: Weight) -> int:
    most = FROZEN_CHUNK_BYTES if is_frozen(head_VH) else CHUNK_BYTES
    return max(1, most // (4 * len(head_VH)))


def _split(rows: int, *columns: Tensor | None) -> list[tuple[Any, ...]]:
    """Return the chunks of all columns, `rows` rows each; None for a column that is None."""
    count = next(-(-len(column) // rows) for column in columns if column is not None)
    return list(zip(*([None] * count if column is None else column.split(rows) for column in columns), strict=True))
