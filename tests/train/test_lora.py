"""Training runs of adapters: precision, targets, and continuing an adapter."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from gesso.adapters import LoraSettings
from gesso.adapters.files import CONFIG, WEIGHTS
from gesso.errors import InputError
from gesso.train.recipe import ContinuedLora, load
from gesso.train.run import train
from tests.train.test_trainer import write_recipe


@pytest.fixture
def recipe(tmp_path, rows, small):
    found = load(write_recipe(tmp_path, rows, small, steps=2, extra="\n[lora]\nrank = 4\n"))
    return replace(found, model=replace(found.model, scratch=False), run=replace(found.run, batch_size=2))


@pytest.fixture
def adapter(tmp_path, recipe):
    """An adapter with its own rank and alpha on attention and experts, trained for two steps."""
    settings = LoraSettings(rank=3, alpha=5.0, targets=("attention", "experts"))
    train(replace(recipe, lora=settings, run=replace(recipe.run, out=str(tmp_path / "first"))), lambda _: None)
    return tmp_path / "first" / "adapter"


def continued(recipe, adapter, **optimizer):
    changed = replace(recipe.optimizer, **optimizer)
    return replace(recipe, lora=ContinuedLora(adapter=str(adapter)), optimizer=changed)


def test_all_weights_in_bfloat16_are_rejected_before_loading(recipe):
    model = replace(recipe.model, dtype="bfloat16", path="/nowhere")
    with pytest.raises(InputError, match='model.dtype = "float32" and run.autocast = "bfloat16"'):
        train(replace(recipe, model=model, lora=None), lambda _: None)


def test_factors_and_moments_stay_float32_over_a_bfloat16_base(tmp_path, recipe):
    train(replace(recipe, model=replace(recipe.model, dtype="bfloat16")), lambda _: None)
    step = tmp_path / "out" / "step-00000002"
    for file in (step / "weights.safetensors", step / "optimizer.safetensors", tmp_path / "out" / "adapter" / WEIGHTS):
        assert {tensor.dtype for tensor in load_file(file).values()} == {torch.float32}, file


def test_the_default_targets_are_attention_and_mlp(tmp_path, recipe):
    assert LoraSettings().targets == ("attention", "mlp")
    train(recipe, lambda _: None)
    config = json.loads((tmp_path / "out" / "adapter" / CONFIG).read_text())
    assert {name.split(".")[-2] for name in config["target_modules"]} == {"self_attn", "mlp"}
    assert config["target_parameters"] is None


# --- continue an adapter ------------------------------------------------------------------------------------------


def test_continued_training_starts_from_the_adapter_with_its_settings(tmp_path, recipe, adapter):
    train(continued(recipe, adapter, lr=1e-12), lambda _: None)
    before, after = (json.loads((path / CONFIG).read_text()) for path in (adapter, tmp_path / "out" / "adapter"))
    assert before == after and (after["r"], after["lora_alpha"]) == (3, 5.0)
    before, after = (load_file(path / WEIGHTS) for path in (adapter, tmp_path / "out" / "adapter"))
    assert before.keys() == after.keys()
    for name in before:
        torch.testing.assert_close(after[name], before[name], msg=name)
    assert any(tensor.any() for name, tensor in after.items() if "lora_B" in name), "B is not zero as in a new adapter"


def test_continued_training_changes_the_adapter_and_resumes(tmp_path, recipe, adapter):
    found = continued(recipe, adapter)
    train(found, lambda _: None, minutes=0)
    train(found, lambda _: None)
    before, after = (load_file(path / WEIGHTS) for path in (adapter, tmp_path / "out" / "adapter"))
    assert all(not torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(InputError, match="lora.adapter"):
        train(continued(recipe, f"{adapter}/."), lambda _: None)


def test_an_adapter_that_differs_between_encoder_and_decoder_is_not_continued(recipe, adapter):
    tensors = load_file(adapter / WEIGHTS)
    changed = {name: tensor + ("encoder" in name) for name, tensor in tensors.items()}
    save_file(changed, adapter / WEIGHTS)
    with pytest.raises(InputError, match="encoder and decoder differently"):
        train(continued(recipe, adapter), lambda _: None)


@pytest.mark.parametrize(
    "section, words",
    [
        ('from = "runs/x/adapter"', None),
        ('from = "runs/x/adapter"\nrank = 8', "remove the other settings"),
        ("from = 3", "directory or hub name"),
    ],
)
def test_a_recipe_continues_an_adapter_with_from_alone(tmp_path, rows, small, section, words):
    path = write_recipe(tmp_path, rows, small, extra=f"\n[lora]\n{section}\n")
    if words is None:
        assert load(path).lora == ContinuedLora(adapter="runs/x/adapter")
        return
    with pytest.raises(InputError, match=words):
        load(path)
