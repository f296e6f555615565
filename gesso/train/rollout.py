"""A differentiable denoising run, for research: steps with soft embeddings in place of sampled tokens.

Gradients of a loss on the final canvas flow through every step. Each step is checkpointed, so memory grows with the
canvas, not with steps times layers. B examples, K canvases per example, C canvas, H hidden.
"""

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gesso.errors import InputError
from gesso.train.batch import Batch
from gesso.train.head import token_losses
from gesso.train.objective import Objective


def rollout(objective: Objective, batch: Batch, noisy_BKC: Tensor, steps: int, temperature: float = 1.0) -> Tensor:
    """Return the hidden states [B, K, C, H] after `steps` denoising steps, differentiable in all weights.

    The expected embedding under a prediction is both the next canvas and its self-conditioning.
    """
    if steps < 1:
        raise InputError(f"a rollout needs at least one step, got {steps}")
    canvas_BKCH = objective.embed(noisy_BKC)
    soft_BKCH = torch.zeros_like(canvas_BKCH)
    refine = partial(_refine, objective, batch, temperature)
    for _ in range(steps - 1):
        soft_BKCH = checkpoint(refine, canvas_BKCH, soft_BKCH, use_reentrant=False)
        canvas_BKCH = soft_BKCH
    return objective.hidden(batch, canvas_BKCH, soft_BKCH)[1]


def _refine(objective: Objective, batch: Batch, temperature: float, canvas_BKCH: Tensor, soft_BKCH: Tensor) -> Tensor:
    _, hidden_BKCH, _ = objective.hidden(batch, canvas_BKCH, soft_BKCH)
    return objective.expected_embedding(hidden_BKCH, temperature)


def rollout_loss(objective: Objective, batch: Batch, noisy_BKC: Tensor, steps: int, temperature: float = 1.0) -> Tensor:
    """Return the mean cross-entropy of the final canvas per example [B]."""
    hidden_BKCH = rollout(objective, batch, noisy_BKC, steps, temperature)
    model = objective.model
    loss_BKC = token_losses(hidden_BKCH, model.head, batch.clean_BKC, model.config.final_logit_softcapping)
    return (loss_BKC.mean(-1) * batch.present_BK).sum(-1) / batch.present_BK.sum(-1)
