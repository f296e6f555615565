"""Random weights, for training from scratch and for tests: a pure function of the seed."""

import torch

from gesso.model.transformer import DiffusionGemma


@torch.no_grad()
def randomise(model: DiffusionGemma, seed: int, std: float = 0.02) -> None:
    """Matrices get normal values, norms and scales ones."""
    generator = torch.Generator(model.device).manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, std, generator=generator)
