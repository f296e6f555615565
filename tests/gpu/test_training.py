"""Training on a GPU: the same losses as on a CPU and after an interruption, and the commands."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gesso
from gesso.adapters import LoraSettings
from gesso.checkpoint.quantize import convert as quantizing
from gesso.train import run as command
from gesso.train.objective import ObjectiveSettings
from gesso.train.recipe import DataSettings, ModelSettings, OptimizerSettings, Recipe, RunSettings
from tests.gpu.device import DEVICE, DRY_RUN

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
LORA = LoraSettings(rank=4, targets=("attention", "experts", "mlp"))


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    lines = [{"prompt": f"{i}: ", "completion": f"{word} and {word[::-1]}"} for i, word in enumerate(words)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def packed_directory(untrained_directory, tmp_path_factory):
    target = tmp_path_factory.mktemp("packed") / "model"
    quantizing.quantize(untrained_directory, target, "fp8")
    return target


def recipe(model, rows, out, *, lora=None, steps=6, conditioning=0.5, **run):
    return Recipe(
        model=ModelSettings(path=str(model)),
        data=DataSettings(files=(str(rows),), max_length=512),
        objective=ObjectiveSettings(
            canvases_per_example="all", canvas_lengths=(16,), self_conditioning=conditioning, pinned=0.3
        ),
        optimizer=OptimizerSettings(lr=1e-3, warmup=2, weight_decay=0.01),
        run=RunSettings(out=str(out), steps=steps, batch_size=4, save_every=3, **run),
        lora=lora,
    )


def train(recipe, monkeypatch, device=DEVICE, until=None):
    """Train on a device and return the metrics of every step; `until` interrupts the run after that step."""

    class Interrupted(Exception):
        pass

    def report(line):
        if line["step"] == until:
            raise Interrupted

    with monkeypatch.context() as patch:
        # The plain device is only for comparison.
        patch.setattr(command, "join_processes", lambda: torch.device(device))
        try:
            command.train(recipe, report)
        except Interrupted:
            assert until
    lines = (Path(recipe.run.out) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def assert_close(found, expected, relative):
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    for name in ("loss", "decoder", "encoder"):
        ours, theirs = ([line[name] for line in lines] for lines in (found, expected))
        assert ours == pytest.approx(theirs, rel=relative), name


# Adapter, quantized weights, share of examples with self-conditioning, tolerance. With quantized weights, kernels round
# activations to FP8 in the first pass of self-conditioning, unlike a CPU.
CASES = {
    "full": (None, False, 0.5, 1e-3),
    "lora": (LORA, False, 0.5, 1e-3),
    "lora on packed weights": (LORA, True, 0.0, 1e-3),
    "lora on packed weights, conditioned": (LORA, True, 0.5, 5e-2),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_equal_those_of_the_cpu(untrained_directory, packed_directory, rows, tmp_path, monkeypatch, case):
    lora, packed, conditioning, relative = CASES[case]
    model = packed_directory if packed else untrained_directory
    cpu, gpu = (
        train(recipe(model, rows, tmp_path / name, lora=lora, conditioning=conditioning), monkeypatch, device)
        for name, device in (("cpu", "cpu"), ("gpu", DEVICE))
    )
    assert len(gpu) == 6
    assert_close(gpu, cpu, relative)


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_losses_in_bfloat16_are_near_those_of_the_cpu(untrained_directory, rows, tmp_path, monkeypatch, lora):
    base = recipe(untrained_directory, rows, tmp_path / "cpu", lora=lora)
    cpu = train(base, monkeypatch, "cpu")
    run = replace(base.run, out=str(tmp_path / "gpu"), autocast="bfloat16")
    assert_close(train(replace(base, run=run), monkeypatch), cpu, 5e-2)


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_resumed_run_continues_as_if_uninterrupted(untrained_directory, rows, tmp_path, monkeypatch, lora):
    """Up to rounding: some sums of a backward pass have no fixed order on a GPU."""
    whole = train(recipe(untrained_directory, rows, tmp_path / "whole", lora=lora, steps=9), monkeypatch)
    legs = recipe(untrained_directory, rows, tmp_path / "legs", lora=lora, steps=9)
    train(legs, monkeypatch, until=5)  # after the checkpoint of step 3
    resumed = train(legs, monkeypatch)
    assert [line["lr"] for line in resumed] == [line["lr"] for line in whole]
    assert_close(resumed[:4], whole[:4], 1e-5)
    assert_close(resumed, whole, 5e-4)


def test_memory_and_speed_options_keep_the_losses(untrained_directory, rows, tmp_path, monkeypatch):
    plain = train(recipe(untrained_directory, rows, tmp_path / "plain"), monkeypatch)
    options = {"checkpoint_activations": True, "workers": 2, "ema": 0.9}
    assert_close(train(recipe(untrained_directory, rows, tmp_path / "other", **options), monkeypatch), plain, 1e-3)


def test_a_trained_model_loads_and_generates(untrained_directory, rows, tmp_path, monkeypatch):
    options = {"canvas_length": 16, "steps": 4, "max_new_tokens": 16, "seed": 1}
    base = gesso.load(untrained_directory, device=DEVICE).generate("1: ", **options)
    for name, lora in (("full", None), ("lora", LORA)):
        losses = [
            line["loss"]
            for line in train(recipe(untrained_directory, rows, tmp_path / name, lora=lora, steps=40), monkeypatch)
        ]
        assert sum(losses[-8:]) < 0.95 * sum(losses[:8])
    full = gesso.load(tmp_path / "full" / "model", device=DEVICE)
    tuned = gesso.load(untrained_directory, device=DEVICE, adapter=tmp_path / "lora" / "adapter")
    assert full.generate("1: ", **options).tokens != base.tokens
    assert tuned.generate("1: ", **options).tokens != base.tokens


# --- commands -------------------------------------------------------------------------------------------------------


def run_module(*arguments, cwd):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_gesso_train_runs_a_recipe(tmp_path):
    shutil.copytree(ROOT / "examples" / "overfit", tmp_path / "examples" / "overfit")
    path = tmp_path / "examples" / "overfit" / "overfit.toml"
    text = (
        path.read_text(encoding="utf-8").replace("steps = 40", "steps = 6").replace("save_every = 20", "save_every = 4")
    )
    path.write_text(text, encoding="utf-8")
    run_module("gesso", "train", str(path), cwd=tmp_path)
    run = tmp_path / "runs" / "overfit"
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert (run / "model" / "config.json").exists()


@pytest.mark.skipif(DRY_RUN, reason="takes minutes on a CPU")
def test_training_is_measured(tmp_path):
    found = json.loads(run_module("benchmarks.train", "--shape", "mini", "--steps", "3", cwd=tmp_path))
    assert found["loss_last"] < found["loss_first"]
    assert found["tokens_per_second"] > 0 and found["mfu"] > 0 and found["peak_memory_GB"] > 0
