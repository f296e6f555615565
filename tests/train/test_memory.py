"""The limit of GPU memory in training, and the message when it runs out."""

import re
from pathlib import Path

import pytest
import torch

from gesso import GessoError, adapters
from gesso.adapters import LoraSettings, factor_values
from gesso.checkpoint import random_weights
from gesso.checkpoint.parameters import empty_model
from gesso.checkpoint.source import CheckpointSource
from gesso.checkpoint.vision import vision_bytes
from gesso.train import run, trainer
from gesso.train.memory import explained, forecast, limit_memory
from gesso.train.recipe import load
from tests.train.test_trainer import write_recipe

TORCH = "CUDA out of memory. Tried to allocate 1.48 GiB. GPU 0 has 139.81 GiB, 0.30 GiB is free. Process 7 has more."


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (TORCH, r"GPU memory \(Tried to allocate 1\.48 GiB; GPU 0 has 139\.81 GiB, 0\.30 GiB is free\)\. Quantize"),
        ("CUDA out of memory", r"GPU memory\. Quantize"),
    ],
)
def test_message_has_the_size_that_failed_and_advice(reason, shown):
    with pytest.raises(GessoError, match=shown), explained():
        raise torch.OutOfMemoryError(reason)


PAGE = Path(__file__).parents[2] / "docs" / "guides" / "fine-tuning.md"
REAL = CheckpointSource(None, Path(), random_weights.config_of("26b-a4b"))


def test_the_forecast_is_the_computed_column_of_the_page():
    """The page has the text model alone, as `gesso bench train` measures it."""
    tower = vision_bytes(REAL.config, 2)
    row = re.compile(r"^\| (\w+) \| rank (\d+), ([a-z, ]+) \| (\d+) M \| ([\d.]+) GB \|", re.MULTILINE)
    rows = row.findall(PAGE.read_text(encoding="utf-8"))
    assert len(rows) == 5
    for weights, rank, targets, trained, gigabytes in rows:
        lora = LoraSettings(rank=int(rank), alpha=2.0 * int(rank), targets=tuple(targets.split(", ")))
        expected = forecast(REAL, torch.bfloat16, None if weights == "bfloat16" else weights, lora)
        assert expected.adapter / 16e6 == pytest.approx(int(trained), abs=0.5)
        assert (expected.total - tower) / 1e9 == pytest.approx(float(gigabytes), abs=0.06)


@pytest.mark.parametrize("targets", [("attention",), ("mlp", "experts"), ("attention", "experts", "self_conditioning")])
def test_the_values_of_an_adapter_are_counted_as_they_are_made(targets):
    config = random_weights.config_of("mini")
    model = random_weights.make(config, torch.device("cpu"), torch.float32)
    settings = LoraSettings(rank=3, alpha=6.0, targets=targets)
    counted = factor_values(empty_model(config), settings)
    adapters.add(model, settings)
    assert counted == factor_values(model, settings)
    assert counted == sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) > 0


def test_a_run_that_cannot_fit_is_rejected_with_figures_and_advice():
    lora = LoraSettings(rank=16, alpha=32.0, targets=("attention", "mlp"))
    expected = forecast(REAL, torch.bfloat16, "int4", lora)
    expected.check(expected.weights + expected.adapter)  # the rest of a step may be smaller
    with pytest.raises(GessoError, match=r"does not fit: weights \(16\.\d+ GB\) .* 12\.00 GB that .* Quantize"):
        expected.check(12 * 10**9)


def test_an_adapter_is_checked_before_anything_is_loaded(tmp_path, rows, small):
    extra = '\n[lora]\nrank = 4\ntargets = ["attention"]\n'
    path = write_recipe(tmp_path, rows, small, extra=extra)
    path.write_text(path.read_text().replace("scratch = true\n", ""))
    recipe, gpu = load(path), torch.device("cuda")
    run._check_memory(recipe, Path(small), gpu, 10**9)
    run._check_memory(recipe, Path(small), torch.device("cpu"), 1)
    with pytest.raises(GessoError, match="training does not fit"):
        run._check_memory(recipe, Path(small), gpu, 10**4)


def test_a_limit_on_a_cpu_is_reported_to_have_no_effect(caplog):
    assert limit_memory(torch.device("cpu"), "18GB") is None
    assert "trains on a CPU, without a limit" in caplog.text


def test_the_limit_is_set_again_after_the_first_step_has_loaded_its_kernels(tmp_path, rows, small, monkeypatch):
    steps, limits = [], []
    # There is no GPU whose memory could be limited.
    monkeypatch.setattr(run, "limit_memory", lambda device, given: {"18GB": 18}[given])
    # Nor a memory fraction that could be read back.
    monkeypatch.setattr(trainer, "keep_within", lambda device, size: limits.append((len(steps), size)))
    recipe = load(write_recipe(tmp_path, rows, small, steps=3))
    run.train(recipe, steps.append, memory="18GB")
    assert len(steps) == 3 and limits == [(0, 18)]  # the first step is reported after it has been launched
