"""Random weights: a pure function of the seed."""

import torch
from torch import Tensor

from gesso.model.transformer import DiffusionGemma


@torch.no_grad()
def begin(model: DiffusionGemma, seed: int) -> None:
    """Fill a model with random weights to train from, all at a similar scale."""
    generator = torch.Generator(model.device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        begin_one(name, parameter, len(model.config.layers), generator)


def begin_one(name: str, parameter: Tensor, layers: int, generator: torch.Generator) -> None:
    """Fill one parameter.

    Matrices preserve the scale of their input. Attention has no scale of its own, so the norms of queries and keys give
    scores of order one. The outputs of all layers together are as large as the embeddings they are added to.
    """
    if parameter.ndim > 1:
        parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)
    elif name.endswith(("q_norm.weight", "k_norm.weight")):
        parameter.fill_(parameter.shape[0] ** -0.25)
    elif name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
        parameter.fill_((2 * layers) ** -0.5)
    else:
        parameter.fill_(1.0)
