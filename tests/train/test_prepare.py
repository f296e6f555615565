"""Training curves: with grouped experts as with plain ones, and on quantized weights as on plain ones."""

from dataclasses import replace

import pytest

from gesso.adapters import LoraSettings
from gesso.checkpoint import write
from gesso.errors import InputError
from gesso.model.config import Config
from gesso.model.init import begin
from gesso.model.transformer import DiffusionGemma
from gesso.train import trainer
from gesso.train.recipe import DataSettings, ModelSettings, ObjectiveSettings, OptimizerSettings, Recipe, RunSettings
from gesso.train.run import train
from tests.tiny import CONFIG, make, tokenizer_json

LORA = LoraSettings(rank=4, targets=("attention", "mlp", "experts"))


def recipe(rows, out, model=None, lora=LORA, lr=3e-3, **model_settings):
    return Recipe(
        model=ModelSettings(path=None if model is None else str(model), **model_settings),
        data=DataSettings(files=(str(rows),), max_length=64),
        objective=ObjectiveSettings(canvas_lengths=(16,)),
        optimizer=OptimizerSettings(lr=lr),
        run=RunSettings(out=str(out), steps=8, batch_size=4),
        lora=lora,
    )


def losses(asked):
    found = []
    train(asked, report=lambda line: found.append(line["loss"]))
    return found


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_losses_with_grouped_experts_equal_those_with_plain_ones(tmp_path, rows, monkeypatch, lora):
    model = make(tmp_path / "tiny", num_experts=8)  # 2 per token
    lr = 1e-4  # Adam's first steps have the size of the rate, even where rounding alone decides their direction
    grouped = losses(recipe(rows, tmp_path / "grouped", model, lora, lr))
    monkeypatch.setattr(trainer, "prepare", lambda model: None)
    plain = losses(recipe(rows, tmp_path / "plain", model, lora, lr))
    assert grouped == pytest.approx(plain, rel=1e-5)
    assert grouped != plain, "the runs differ in the order of their sums"


def test_an_adapter_learns_on_the_bundled_model_in_fp8_as_on_plain_weights(tmp_path, rows):
    """The loss of each step is within 2 %. The bundled experts are too narrow for blocks of four-bit values."""
    asked = [recipe(rows, tmp_path / str(quantize), quantize=quantize) for quantize in ("fp8", None)]
    quantized, plain = (losses(replace(each, run=replace(each.run, batch_size=8, steps=4))) for each in asked)
    assert quantized == pytest.approx(plain, rel=0.02) and quantized != plain


@pytest.mark.parametrize("quantize", ["int4", "nvfp4"])
def test_an_adapter_learns_on_four_bit_weights_as_on_plain_ones(tmp_path, rows, quantize):
    text = CONFIG["text_config"] | {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64}
    model = DiffusionGemma(Config.from_dict(CONFIG | {"text_config": text}))
    begin(model, seed=0)
    files = {"tokenizer.json": tokenizer_json(), "generation_config.json": "{}\n"}
    write.save(model, tmp_path / "model", files=files)
    asked = [recipe(rows, tmp_path / str(each), tmp_path / "model", quantize=each) for each in (quantize, None)]
    quantized, plain = map(losses, asked)
    assert quantized == pytest.approx(plain, rel=0.02) and quantized != plain


def test_only_frozen_weights_can_be_quantized(tmp_path, rows):
    with pytest.raises(InputError, match=r"add \[lora\]"):
        train(replace(recipe(rows, tmp_path / "out", quantize="int4"), lora=None))
