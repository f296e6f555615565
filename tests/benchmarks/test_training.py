"""Training steps, on shapes that take about a second."""

from dataclasses import replace

import pytest
import torch

from benchmarks import training
from gesso.checkpoint import random_weights
from gesso.errors import InputError
from gesso.train.objective import Objective
from tests.bench.tiny_shape import TINY


@pytest.mark.parametrize("name", training.SHAPES)
def test_training_is_measured_for_every_shape(monkeypatch, name):
    shape = replace(training.shape_of(name, examples=2, prompt=32, response=32), dtype=torch.float32)
    monkeypatch.setitem(random_weights.SHAPES, name, TINY)
    found = training.measure(name, shape, steps=2, device=torch.device("cpu"), memory=0)
    assert found["tokens_a_step"] == 2 * (64 + 256)
    assert found["tokens_per_second"] == pytest.approx(found["tokens_a_step"] / found["seconds_a_step"])
    assert found["loss_last"] < found["loss_first"], "the steps train the model"
    assert (found["trained"] < found["active"] / 2) is (shape.lora is not None)


def test_half_of_the_examples_are_conditioned_on_a_first_pass(monkeypatch):
    monkeypatch.setitem(random_weights.SHAPES, "mini", TINY)
    first_passes = []
    hidden = Objective.hidden
    monkeypatch.setattr(
        Objective, "hidden", lambda self, batch, *rest: first_passes.append(not torch.is_grad_enabled())
        or hidden(self, batch, *rest),
    )  # fmt: skip
    training.measure(
        "mini", training.shape_of("mini", examples=1, prompt=8, response=8), 4, torch.device("cpu"), memory=0
    )
    assert (sum(first_passes), len(first_passes)) == (3, 9)


def test_an_unknown_shape_is_rejected():
    with pytest.raises(InputError, match="mini, 26b-a4b"):
        training.shape_of("huge")


def test_a_shape_without_an_adapter_has_no_rank():
    with pytest.raises(InputError, match="--rank"):
        training.shape_of("mini", rank=8)
