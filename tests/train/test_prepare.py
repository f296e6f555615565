"""Training curves: with grouped experts as with plain ones, and on quantized weights as on plain ones."""

from dataclasses import replace

import pytest
import torch

from gesso.adapters import LoraSettings
from gesso.checkpoint import write
from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.source import open_source
from gesso.errors import InputError
from gesso.model.config import Config
from gesso.model.init import begin
from gesso.model.transformer import DiffusionGemma
from gesso.train.experts import GroupedExperts
from gesso.train.objective import Objective
from gesso.train.prepare import prepare
from gesso.train.recipe import DataSettings, ModelSettings, ObjectiveSettings, OptimizerSettings, Recipe, RunSettings
from gesso.train.run import train
from tests.tiny import CONFIG, make, tokenizer_json
from tests.train.test_objective import examples
from tests.train.test_objective import make as make_batch

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


def test_losses_with_grouped_experts_equal_those_with_plain_ones(tmp_path):
    """`test_experts.py` compares all gradients."""
    model = load_weights(open_source(make(tmp_path / "tiny", num_experts=8)), torch.device("cpu"), torch.float32)
    settings = ObjectiveSettings()
    batch, noise = make_batch(model.config, settings, examples(model.config))
    plain = Objective(model, settings)(batch, noise).total_B
    prepare(model)
    assert any(isinstance(module, GroupedExperts) for module in model.modules())
    torch.testing.assert_close(Objective(model, settings)(batch, noise).total_B, plain, rtol=1e-5, atol=0)


@pytest.mark.parametrize("quantize", ["fp8", "int4", "nvfp4"])
def test_an_adapter_learns_on_quantized_weights_as_on_plain_ones(tmp_path, rows, quantize):
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
