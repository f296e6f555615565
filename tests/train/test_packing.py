"""Packing: the texts of a batch one after another, without padding between them.

B examples, S text of all examples.
"""

from dataclasses import replace

import pytest
import torch

from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.source import open_source
from gesso.train.objective import Objective
from gesso.train.recipe import ObjectiveSettings
from tests import oracle
from tests.train.test_objective import CPU, TIED, examples, make


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("packing") / "model"
    oracle.checkpoint(directory, TIED[2])
    return load_weights(open_source(directory), CPU, torch.float32)


def of_batch(model, settings, found, **options):
    """Return losses by example, and the gradient of their sum for every weight."""
    batch, noise = make(model.config, settings, found, **options)
    weights = [weight.requires_grad_() for name, weight in model.named_parameters() if "layer_scalars" not in name]
    found = Objective(model, settings)(batch, noise)
    return found, torch.autograd.grad(found.total_B.sum(), weights)


@pytest.mark.parametrize("canvases", [1, "all"])
def test_packed_losses_equal_those_of_each_example_alone(model, canvases):
    settings = ObjectiveSettings(canvases_per_example=canvases)
    found = examples(model.config)
    packed, gradients = of_batch(model, settings, found, pack=True, multiple=16)
    padded, expected = of_batch(model, settings, found)
    alone = [of_batch(model, settings, [example], first=100 + i)[0] for i, example in enumerate(found)]
    for name in ("decoder_B", "encoder_B", "total_B"):
        one_by_one = torch.cat([getattr(single, name) for single in alone])
        torch.testing.assert_close(getattr(packed, name), one_by_one, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(getattr(packed, name), getattr(padded, name), rtol=1e-5, atol=1e-6)
    for one, other in zip(gradients, expected, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm() + 1e-7


def test_no_example_affects_another_one_in_its_batch(model):
    settings = ObjectiveSettings(canvases_per_example="all", self_conditioning=1.0)
    found = examples(model.config)
    before, _ = of_batch(model, settings, found, pack=True)
    middle = tuple((token + 1) % model.config.vocab_size for token in found[2].tokens)
    after, _ = of_batch(model, settings, [*found[:2], replace(found[2], tokens=middle), *found[3:]], pack=True)
    changed_B = (before.total_B - after.total_B).abs() > 1e-5
    assert changed_B.tolist() == [i == 2 for i in range(len(found))]


def test_only_the_sum_of_packed_texts_is_padded(model):
    found = examples(model.config)
    lengths = [len(example.tokens) for example in found]
    packed, _ = make(model.config, ObjectiveSettings(), found, pack=True)
    assert packed.layout.width_B.tolist() == lengths and packed.valid_S.all()
    rounded, _ = make(model.config, ObjectiveSettings(), found, pack=True, multiple=64)
    assert len(rounded.text_S) == -(-sum(lengths) // 64) * 64
    assert rounded.valid_S.sum() == sum(lengths) and rounded.layout.width_B.tolist()[:-1] == lengths[:-1]
    padded, _ = make(model.config, ObjectiveSettings(), found)
    assert padded.layout.width_B.tolist() == [max(lengths)] * len(found)
