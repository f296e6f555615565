"""A differentiable denoising run, for research: steps with soft embeddings in place of sampled tokens.

Gradients of a loss on the final canvas flow through every step. Each step is checkpointed, so memory grows with the
canvas, not with steps times layers. B examples, S text, K canvases of all examples, C canvas, H hidden.
"""

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gesso.errors import InputError
from gesso.train.batch import Batch
from gesso.train.head import token_losses
from gesso.train.objective import Objective, mean_per_example


def rollout(objective: Objective, batch: Batch, noisy_KC: Tensor, steps: int, temperature: float = 1.0) -> Tensor:
    """Return the hidden states [K, C, H] after `steps` denoising steps, differentiable in all weights.

    The expected embedding under a prediction is both the next canvas and its self-conditioning.
    """
    if steps < 1:
        raise InputError(f"a rollout needs at least one step, got {steps}")
    canvas_KCH = objective.embed(noisy_KC)
    soft_KCH = torch.zeros_like(canvas_KCH)
    text_SH = objective.embed_text(batch)
    refine = partial(_refine, objective, batch, text_SH, temperature)
    for _ in range(steps - 1):
        soft_KCH = checkpoint(refine, canvas_KCH, soft_KCH, use_reentrant=False)
        canvas_KCH = soft_KCH
    return objective.hidden(batch.layout, text_SH, canvas_KCH, soft_KCH)[1]


def _refine(
    objective: Objective, batch: Batch, text_SH: Tensor, temperature: float, canvas_KCH: Tensor, soft_KCH: Tensor
) -> Tensor:
    _, hidden_KCH, _ = objective.hidden(batch.layout, text_SH, canvas_KCH, soft_KCH)
    return objective.expected_embedding(hidden_KCH, temperature)


def rollout_loss(objective: Objective, batch: Batch, noisy_KC: Tensor, steps: int, temperature: float = 1.0) -> Tensor:
    """Return the mean cross-entropy of the final canvas per example [B]."""
    hidden_KCH = rollout(objective, batch, noisy_KC, steps, temperature)
    model = objective.model
    loss_KC = token_losses(hidden_KCH, model.head, batch.clean_KC, model.config.final_logit_softcapping)
    return mean_per_example(loss_KC.mean(-1), batch.owner_K, batch.size)
