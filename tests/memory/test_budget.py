"""The precision that `quantize="auto"` chooses, and models that do not fit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gesso
from gesso.cards.named import CARDS
from gesso.cards.running import playing
from gesso.checkpoint import random_weights
from gesso.checkpoint.source import CheckpointSource
from gesso.checkpoint.vision import vision_bytes
from gesso.errors import DoesNotFitError, InputError
from gesso.memory.budget import CONTEXT, HOST_RESERVE, PRECISIONS_CPU, Budget, Placement, choose_placement, spread
from gesso.memory.device import DeviceMemory, memory_of, read_memory
from gesso.model.config import Config

GB = 10**9
REAL = random_weights.config_of("26b-a4b")


def source_of(config: Config) -> CheckpointSource:
    return CheckpointSource(None, Path(), config)


def chosen(gb: float, quantize: str | None = "auto", *, max_batch: int = 1, config: Config = REAL) -> str | None:
    memory = DeviceMemory(round(gb * GB), round(gb * GB), "cuda")
    placement = choose_placement(
        CheckpointSource(None, Path(), config), memory, 0.9, 2, quantize, max_batch=max_batch, max_length=None
    )
    assert not placement.layers, "without host memory nothing streams"
    return None if placement.quantize == "none" else placement.quantize


@pytest.mark.parametrize(("gb", "precision"), [(141, None), (80, None), (48, "fp8"), (33, "fp8"), (24, "int4")])
def test_auto_is_the_widest_precision_that_fits(gb: float, precision: str | None) -> None:
    assert chosen(gb) == precision


def test_auto_makes_room_for_the_batch_or_else_for_one_text() -> None:
    assert chosen(62) is None and chosen(62, max_batch=8) == "fp8"
    assert chosen(22, max_batch=8) == chosen(22) == "int4"


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
    with pytest.raises(InputError, match="is not usable"):
        gesso.load(memory=1.5)


@pytest.mark.parametrize("precision", PRECISIONS_CPU)
def test_load_with_auto_packs_the_weights_only_as_far_as_needed(tiny_directory: Path, precision: str) -> None:
    budget = Budget(Config.from_directory(tiny_directory), 0, 4, 256, on_cpu=True)
    size = budget.weights(precision) + budget.workspace(1) + budget.sequence(CONTEXT)
    model = gesso.load(tiny_directory, quantize="auto", memory=f"{size / 1000}kB", max_batch=1)
    assert (model.config.quantization or "none") == precision


def test_memory_that_torch_has_reserved_and_not_used_is_free(
    driver: Callable[..., object], host: Callable[[int, int], None]
) -> None:
    driver(free=10, total=80, reserved=60, allocated=20)
    host(9, 7)
    with playing(CARDS["h200"]):
        memory = memory_of(torch.device("cuda"))
        assert memory == DeviceMemory(80, 50, "cuda", host=7)
        assert memory_of(torch.device("cuda"), ours=True) == replace(memory, free=70)
    assert memory.budget(0.5) == 40 and memory.budget(0.9) == 50


def test_the_26b_at_four_bits_with_8k_of_context_needs_at_most_18_gb_of_a_cpu() -> None:
    memory = DeviceMemory(24 * GB, 18 * GB, "cpu")
    for quantize in ("int4", "auto"):
        placement = choose_placement(source_of(REAL), memory, 1.0, 4, quantize, max_batch=1, max_length=CONTEXT)
        assert placement == Placement("int4")
    with pytest.raises(DoesNotFitError, match="quantized to int4 .* need .* GB, and 12.00 GB may be used"):
        choose_placement(source_of(REAL), memory, "12GB", 4, "auto", max_batch=1, max_length=CONTEXT)


def test_int8_for_attention_is_rejected_on_a_gpu() -> None:
    with pytest.raises(InputError, match="unknown quantization 'int4-int8'.*for loading on a CPU"):
        chosen(80, "int4-int8")


# --- sizes of memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        (0.9, 0.9), ("0.9", 0.9), (1, 1.0), ("12GB", 12 * GB), ("12 gb", 12 * GB), ("12GiB", 12 * 2**30),
        ("800MB", 800 * 10**6), ("1.5GB", 1_500_000_000),
    ],
)  # fmt: skip
def test_memory_is_a_share_or_a_size(given: float | str, limit: float) -> None:
    found = read_memory(given)
    assert found == limit and isinstance(found, int) == (limit > 1)
    memory = DeviceMemory(16 * GB, 15 * GB, "cuda")
    assert memory.budget(given) == min(limit if limit > 1 else round(limit * 16 * GB), 15 * GB)


@pytest.mark.parametrize("given", [0, -1, 1.1, 12, "12", "GB", "0GB", "12GB x", "nan", "12 parsecs", ""])
def test_a_memory_that_is_neither_share_nor_size_is_rejected(given: float | str) -> None:
    with pytest.raises(InputError, match="a share above 0 .* or a size such as 12GB"):
        read_memory(given)


# --- streamed experts -----------------------------------------------------------------------------------------------


def placed(
    gb: float, quantize: str | None = "auto", *, host: float = 64, config: Config = REAL, max_batch: int = 8
) -> Placement:
    memory = DeviceMemory(80 * GB, 80 * GB, "cuda", round(host * GB))
    return choose_placement(
        CheckpointSource(None, Path(), config), memory, f"{gb}GB", 2, quantize, max_batch=max_batch, max_length=None
    )


def test_experts_stream_only_if_no_precision_fits() -> None:
    assert placed(48) == Placement("fp8") and placed(24) == Placement("int4")
    for gb in (8, 12, 16):
        found = placed(gb)
        assert found.quantize == "int4" and 3 <= len(found.layers) < 30
    assert placed(16, "fp8").quantize == "fp8" and placed(24, None).quantize == "none"
    assert placed(16, config=REAL.quantized("int4")) == replace(placed(16), quantize="none")


@pytest.mark.parametrize("gb", [8, 12, 16])
def test_the_fewest_layers_stream_that_make_room_for_one_text(gb: int) -> None:
    found, budget = placed(gb), Budget(REAL, gb * GB, 2, 2048, vision=vision_bytes(REAL, 2))
    needed = budget.workspace(1) + budget.sequence(CONTEXT)
    assert budget.weights("int4", found.layers) + needed <= gb * GB
    fewer = spread(len(found.layers) - 1, 30)
    assert budget.weights("int4", fewer) + needed > gb * GB
    layer = 128 * 3 * 704 * 2816 * 4.5 / 8
    assert found.host_bytes == len(found.layers) * layer
    kept = budget.weights("int4") - vision_bytes(REAL, 2) - found.host_bytes + 2 * layer
    assert budget.weights("int4", found.layers) == kept, "the vision tower stays in host memory, too"


def test_less_memory_streams_more_layers() -> None:
    counts = [len(placed(gb).layers) for gb in range(8, 22)]
    assert counts == sorted(counts, reverse=True) and counts[0] > 2 * counts[8]


def test_too_little_host_memory_is_rejected_with_both_figures() -> None:
    need = placed(12).host_bytes / GB
    assert placed(12, host=need + HOST_RESERVE / GB + 0.001).layers
    with pytest.raises(DoesNotFitError, match=rf"experts of \d+ layers in host memory, .* {need:.2f} GB and 5.00 GB"):
        placed(12, host=5 + HOST_RESERVE / GB)


def test_nothing_streams_without_a_gpu_or_below_the_size_of_the_other_weights() -> None:
    memory = memory_of(torch.device("cpu"))
    assert memory.host == 0
    with pytest.raises(DoesNotFitError):
        placed(4)


def test_streamed_layers_are_spread_evenly() -> None:
    assert spread(30, 30) == tuple(range(30))
    assert spread(3, 30) == (9, 19, 29)
    for count in range(1, 31):
        layers = spread(count, 30)
        gaps = [b - a for a, b in zip((-1, *layers), layers, strict=False)]
        assert len(set(layers)) == count and layers[-1] == 29 and max(gaps) - min(gaps) <= 1
