"""The loss over several denoising steps."""

import pytest
import torch

from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.source import open_source
from gesso.errors import InputError
from gesso.train.objective import Objective
from gesso.train.recipe import ObjectiveSettings
from gesso.train.rollout import rollout_loss
from tests import oracle
from tests.train.test_objective import CPU, TIED, examples, make


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_rollout_gradients_match_finite_differences(tmp_path, steps):
    """Compare with finite differences along random directions of all weights."""
    oracle.checkpoint(tmp_path / "model", TIED[0], near_identity=True)
    model = load_weights(open_source(tmp_path / "model"), CPU, torch.float32)
    objective = Objective(model, ObjectiveSettings())
    batch, noise = make(model.config, objective.settings, examples(model.config, count=2))
    weights = [p for n, p in model.named_parameters() if "layer_scalars" not in n and "router" not in n]
    for weight in weights:
        weight.requires_grad_(True)

    def loss():
        return rollout_loss(objective, batch, noise.noisy_KC, steps).mean()

    loss().backward()
    gradients = [weight.grad.double() for weight in weights]
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        direction = [torch.randn(w.shape, generator=generator) * w.detach().abs().mean() for w in weights]
        expected = sum((g * d.double()).sum() for g, d in zip(gradients, direction, strict=True))
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                for weight, d in zip(weights, direction, strict=True):
                    weight.add_(d, alpha=sign * 1e-3)
                values.append(loss().double())
                for weight, d in zip(weights, direction, strict=True):
                    weight.sub_(d, alpha=sign * 1e-3)
        found = (values[0] - values[1]) / 2e-3
        assert found.item() == pytest.approx(expected.item(), rel=0.03, abs=2e-3)


def test_rollout_loss_depends_on_the_first_step(tmp_path):
    """The embedding of the initial noise gets a gradient from the loss of the last step."""
    oracle.checkpoint(tmp_path / "model", TIED[0])
    model = load_weights(open_source(tmp_path / "model"), CPU, torch.float32)
    objective = Objective(model, ObjectiveSettings())
    batch, noise = make(model.config, objective.settings, examples(model.config, count=1)[:1])
    start = objective.embed(noise.noisy_KC).detach().requires_grad_(True)
    objective.embed = lambda ids: start if ids is noise.noisy_KC else Objective.embed(objective, ids)
    rollout_loss(objective, batch, noise.noisy_KC, 3).sum().backward()
    assert start.grad.abs().sum() > 0
    with pytest.raises(InputError, match="at least one step"):
        rollout_loss(objective, batch, noise.noisy_KC, 0)
