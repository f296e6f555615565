"""Changes between the parts of a run: which are accepted, reported or rejected."""

import logging
import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save

from gesso import GessoError
from gesso.errors import InputError
from gesso.train.recipe import load
from gesso.train.run import train
from tests.train.test_trainer import metrics, write_recipe


@pytest.fixture
def begun(tmp_path, rows, small):
    """A run of four steps that is finished."""
    recipe = load(write_recipe(tmp_path, rows, small, steps=4))
    recipe = replace(recipe, model=replace(recipe.model, scratch=False), optimizer=replace(recipe.optimizer, warmup=1))
    train(recipe, lambda _: None)
    return recipe


def with_optimizer(recipe, steps=6, **changes):
    return replace(
        recipe, optimizer=replace(recipe.optimizer, **changes), run=replace(recipe.run, steps=steps, save_every=2)
    )


def test_a_run_resumes_with_another_learning_rate_and_says_so(tmp_path, begun, caplog):
    with caplog.at_level(logging.WARNING, "gesso"):
        train(with_optimizer(begun, lr=1e-3, clip=0.5), lambda _: None)
    assert "optimizer.lr was 0.003, and is 0.001 from here on" in caplog.text
    assert "optimizer.clip was 1.0, and is 0.5 from here on" in caplog.text
    assert max(line["lr"] for line in metrics(tmp_path / "out")[4:]) <= 1e-3
    caplog.clear()
    with caplog.at_level(logging.WARNING, "gesso"):
        train(with_optimizer(begun, lr=1e-3, clip=0.5), lambda _: None)
    assert caplog.text == "", "the change is part of the run now"


def test_the_advice_for_a_loss_that_is_not_finite_can_be_followed(tmp_path, begun, monkeypatch):
    from gesso.train.objective import Objective

    forward = Objective.forward
    with monkeypatch.context() as patch:
        # A loss that is not finite at a given step.
        patch.setattr(Objective, "forward", lambda *a: replace(found := forward(*a), total_B=found.total_B * torch.nan))
        with pytest.raises(GessoError, match="lower optimizer.lr or optimizer.clip, or raise optimizer.warmup"):
            train(longer(begun), lambda _: None)
    train(with_optimizer(begun, lr=1e-3, clip=0.1, warmup=9), lambda _: None)
    assert [line["step"] for line in metrics(tmp_path / "out")] == [1, 2, 3, 4, 5, 6]


def test_a_longer_run_warns_of_the_jump_of_the_learning_rate(begun, caplog):
    with caplog.at_level(logging.WARNING, "gesso"):
        train(begun, lambda _: None)
    assert caplog.text == "", "nothing has changed"
    with caplog.at_level(logging.WARNING, "gesso"):
        train(with_optimizer(begun, steps=40), lambda _: None, minutes=0)
    assert "the learning rate changes from 0.00075 (step 4) to 0.00296 (step 5)" in caplog.text


def test_resuming_with_other_settings_is_rejected(begun):
    for change in ({"kind": "muon"}, {"betas": (0.9, 0.99)}, {"weight_decay": 0.1}):
        with pytest.raises(InputError, match=rf"optimizer\.{next(iter(change))}"):
            train(with_optimizer(begun, **change), lambda _: None)


# --- changed files ------------------------------------------------------------------------------------------------


def longer(recipe):
    return replace(recipe, run=replace(recipe.run, steps=5))


def test_a_changed_file_is_rejected_by_name_and_the_same_content_is_accepted(begun, rows, small):
    tensors = load_file(small / "model.safetensors")
    changed = tensors | {"model.decoder.norm.weight": tensors["model.decoder.norm.weight"] + 1}
    for file, content, shown in (
        (rows, rows.read_bytes().replace(b"one", b"uno"), r"rows\.jsonl"),
        (small / "tokenizer.json", (small / "tokenizer.json").read_bytes() + b"\n", "tokenizer.json of the base"),
        (small / "config.json", (small / "config.json").read_bytes() + b"\n", "config.json of the base"),
        (small / "model.safetensors", save(changed, {"format": "pt"}), "model.safetensors of the base"),
    ):
        before = file.read_bytes()
        file.write_bytes(content)
        with pytest.raises(InputError, match=rf"{shown}.* has changed since the run in .*out was started; restore"):
            train(longer(begun), lambda _: None)
        file.write_bytes(before)
        os.utime(file, (1, 1))
    train(longer(begun), lambda _: None)
