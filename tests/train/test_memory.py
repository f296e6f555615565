"""The limit of GPU memory in training, and the message when it runs out."""

import pytest
import torch

from gesso.errors import GessoError
from gesso.memory.device import DeviceMemory
from gesso.train import memory, run, trainer
from gesso.train.memory import explained, limit_memory
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


def test_a_limit_is_a_share_or_a_size_of_the_gpu(monkeypatch):
    limits = []
    monkeypatch.setattr(memory, "memory_of", lambda device: DeviceMemory(100, 80, "cuda"))
    monkeypatch.setattr(memory, "keep_within", lambda device, size: limits.append((device.index, size)))
    gpu = torch.device("cuda", 1)
    assert limit_memory(gpu, 0.5) == 50
    assert limit_memory(gpu, "1KB") == 80, "no more than is free"
    assert limit_memory(gpu, None) is None
    assert limits == [(1, 50), (1, 80)]


def test_a_limit_on_a_cpu_is_reported_to_have_no_effect(caplog):
    assert limit_memory(torch.device("cpu"), "18GB") is None
    assert "trains on a CPU, without a limit" in caplog.text


def test_the_limit_is_set_again_after_the_first_step_has_loaded_its_kernels(tmp_path, rows, small, monkeypatch):
    steps, limits = [], []
    monkeypatch.setattr(run, "limit_memory", lambda device, given: {"18GB": 18}[given])
    monkeypatch.setattr(trainer, "keep_within", lambda device, size: limits.append((len(steps), size)))
    recipe = load(write_recipe(tmp_path, rows, small, steps=3))
    run.train(recipe, steps.append, memory="18GB")
    assert len(steps) == 3 and limits == [(0, 18)]  # the first step is reported after it has been launched
