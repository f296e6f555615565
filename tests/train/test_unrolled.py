"""Canvases after a step of the model's own, `objective.unrolled`: what the sampler does, and nothing else.

K canvases, C positions, V tokens of the vocabulary.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.source import open_source
from gesso.diffusion.moment import lowest_within
from gesso.train.batch import BOUNDS, collate, corrupt
from gesso.train.first_passes import first_passes
from gesso.train.objective import Objective
from gesso.train.recipe import ObjectiveSettings
from tests import oracle
from tests.train.test_objective import TIED, examples


@pytest.fixture
def model(tmp_path):
    oracle.checkpoint(tmp_path / "model", TIED[2])
    return load_weights(open_source(tmp_path / "model"), torch.device("cpu"), torch.float32)


def noisy(model, rows, **options):
    batch = collate(
        rows, canvas_length=model.config.canvas_length, per_example=1, eos=1, pad=0, learn_text="all", seed=3, first=0,
        draws=4,
    )  # fmt: skip
    return batch, corrupt(batch, model.config.vocab_size, conditioning=1.0, seed=3, first=0, **options)


def shown(objective, batch, noise):
    with torch.no_grad():
        return first_passes(objective, batch, objective.embed_text(batch), noise)[1]


def test_the_second_pass_is_shown_the_canvas_after_a_step_of_the_sampler(model):
    objective = Objective(model, ObjectiveSettings(unrolled=1.0))
    batch, noise = noisy(model, examples(model.config), unrolled=1.0)
    step = noise.next_step
    with torch.no_grad():
        text_SH = objective.embed_text(batch)
        embedded_KCH = objective.embed(noise.noisy_KC)
        _, hidden_KCH, _ = objective.hidden(batch.layout, text_SH, embedded_KCH, torch.zeros_like(embedded_KCH))
        probability_KCV = model.logits(hidden_KCH).double().softmax(-1)
    entropy_KC = torch.special.entr(probability_KCV).sum(-1)
    accepted_KC = lowest_within(entropy_KC, step.bound_K1)
    drawn_KC = (probability_KCV.cumsum(-1) < step.drawn_KC[..., None]).sum(-1)
    expected_KC = torch.where(accepted_KC, drawn_KC, step.noise_KC)
    agree = (shown(objective, batch, noise) == expected_KC).float().mean()
    assert agree > 0.995  # float32 may round a number across the boundary between two tokens
    assert 0.05 < accepted_KC.float().mean() < 0.95


def test_pinned_positions_and_canvases_that_take_no_step_stay_as_they_are(model):
    objective = Objective(model, ObjectiveSettings(unrolled=0.5, pinned=0.5))
    batch, noise = noisy(model, 4 * examples(model.config), unrolled=0.5, pinned=0.5)
    step = noise.next_step
    may_change_KC = step.taken_K[:, None] & step.open_KC
    changed_KC = shown(objective, batch, noise) != noise.noisy_KC
    assert not (changed_KC & ~may_change_KC).any()
    assert changed_KC[may_change_KC].float().mean() > 0.3
    assert 0.2 < step.taken_K.float().mean() < 0.8
    assert not step.open_KC.all()


def test_all_draws_of_an_example_take_the_step_or_none(model):
    batch, noise = noisy(model, 4 * examples(model.config), unrolled=0.5)
    for example in range(batch.size):
        assert len(set(noise.next_step.taken_K[batch.owner_K == example].tolist())) == 1


def test_bounds_differ_between_canvases_and_stay_within_their_range(model):
    _, noise = noisy(model, 4 * examples(model.config), unrolled=1.0)
    bounds = noise.next_step.bound_K1.flatten().numpy()
    assert len(np.unique(bounds)) == len(bounds)
    assert bounds.min() >= BOUNDS[0] * 0.999
    assert bounds.max() <= BOUNDS[1] * 1.001
    assert bounds.min() < 0.5 < bounds.max()


def test_without_unrolled_the_canvas_of_the_first_pass_is_shown_again(model):
    objective = Objective(model, ObjectiveSettings())
    batch, noise = noisy(model, examples(model.config))
    assert noise.next_step is None
    assert torch.equal(shown(objective, batch, noise), noise.noisy_KC)


def test_unrolled_changes_the_loss_and_not_the_noise(model):
    rows = examples(model.config)
    batch, noise = noisy(model, rows, unrolled=1.0)
    plain = replace(noise, next_step=None)
    objective = Objective(model, ObjectiveSettings(unrolled=1.0))
    with torch.no_grad():
        unrolled_B, plain_B = objective(batch, noise).decoder_B, objective(batch, plain).decoder_B
    assert not torch.allclose(unrolled_B, plain_B)
    assert torch.equal(noisy(model, rows)[1].noisy_KC, noise.noisy_KC)
