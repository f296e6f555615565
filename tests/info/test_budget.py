"""The precision that `quantize="auto"` chooses, and models that do not fit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gesso
from gesso import loading
from gesso.checkpoint import random_weights
from gesso.errors import DoesNotFitError, InputError
from gesso.info.budget import CONTEXT, PRECISIONS, Budget, choose_precision
from gesso.info.device import DeviceMemory, memory_of
from gesso.model.config import Config

GB = 10**9
REAL = random_weights.config_of("26b-a4b")


def chosen(gb: float, quantize: str | None = "auto", *, max_batch: int = 1, config: Config = REAL) -> str | None:
    memory = DeviceMemory(round(gb * GB), round(gb * GB), "cuda")
    return choose_precision(config, memory, 0.9, 2, quantize, max_batch=max_batch, max_length=None)


@pytest.mark.parametrize(("gb", "precision"), [(141, None), (80, None), (48, "fp8"), (32, "fp8"), (24, "int4")])
def test_auto_is_the_widest_precision_that_fits(gb: float, precision: str | None) -> None:
    assert chosen(gb) == precision


def test_auto_makes_room_for_the_batch_or_else_for_one_text() -> None:
    assert chosen(60) is None and chosen(60, max_batch=8) == "fp8"
    assert chosen(20, max_batch=8) == chosen(20) == "int4"


def test_auto_keeps_a_quantized_checkpoint_as_it_is() -> None:
    assert chosen(24, config=REAL.quantized("int4")) is None
    with pytest.raises(DoesNotFitError) as rejected:
        chosen(24, config=REAL.quantized("fp8"))
    assert rejected.value.fits is None


@pytest.mark.parametrize(
    ("quantize", "gb", "fits"), [(None, 24, "int4"), (None, 48, "fp8"), ("fp8", 24, "int4"), ("auto", 8, None)]
)
def test_a_model_that_does_not_fit_is_rejected_with_figures_and_what_would_fit(
    quantize: str | None, gb: float, fits: str | None
) -> None:
    with pytest.raises(DoesNotFitError, match=rf"does not fit: weights .* need .* {0.9 * gb:.2f} GB may be used") as no:
        chosen(gb, quantize)
    assert no.value.fits == fits


def test_unknown_quantization_and_share_are_rejected() -> None:
    with pytest.raises(InputError, match="unknown quantization 'int5'"):
        chosen(80, "int5")
    with pytest.raises(InputError, match="share of memory"):
        gesso.load(memory=1.5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_load_with_auto_packs_the_weights_only_as_far_as_needed(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    budget = Budget(Config.from_directory(tiny_directory), 0, 4, 256)
    size = budget.weights(precision) + budget.workspace(1) + budget.sequence(CONTEXT)
    monkeypatch.setattr(loading, "memory_of", lambda _: DeviceMemory(size, size, "cpu"))
    model = gesso.load(tiny_directory, quantize="auto", memory=1.0, max_batch=1)
    assert (model.config.quantization or "none") == precision


def test_memory_that_torch_has_reserved_and_not_used_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"mem_get_info": (10, 80), "memory_reserved": 60, "memory_allocated": 20}.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    memory = memory_of(torch.device("cuda"))
    assert memory == DeviceMemory(80, 50, "cuda")
    assert memory_of(torch.device("cuda"), ours=True) == replace(memory, free=70)
    assert memory.budget(0.5) == 40 and memory.budget(0.9) == 50
