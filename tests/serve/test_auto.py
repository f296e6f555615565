"""Settings chosen by the available memory, for simulated devices and the shape of the 26B model."""

from dataclasses import replace
from pathlib import Path

import pytest

from gesso.checkpoint.source import open_source
from gesso.checkpoint.vision import vision_bytes
from gesso.errors import InputError
from gesso.info.report import describe
from gesso.memory.device import DeviceMemory, host_memory
from gesso.memory.sequences import sequence_bytes
from gesso.memory.workspace import workspace_bytes
from gesso.model.config import Config
from gesso.printable import in_options
from gesso.serve import startup
from gesso.serve.auto import choose, remeasure
from gesso.serve.settings import EngineSettings
from tests.info.test_info import REAL, write

GB = 10**9
LONGEST = 262_144


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return EngineSettings(model=str(write(tmp_path_factory.mktemp("real"), REAL)))


@pytest.fixture(scope="module")
def weights(real):
    """The bytes of the weights in each precision, without the vision tower: this directory has none."""
    source = open_source(Path(real.model))
    return {
        cell.precision: cell.weight_bytes - vision_bytes(source.config, 2) for cell in describe(source, "26B").memory
    }


def on_gpu(settings, gb, free=None):
    return choose(settings, DeviceMemory(gb * GB, (free or gb) * GB, "cuda"), 2)


def worst_case(settings, config):
    workspace = workspace_bytes(config, settings.max_batch, settings.prefill, config.canvas_length)
    return workspace + settings.max_batch * sequence_bytes(config, settings.max_length)


@pytest.mark.parametrize(
    ("gb", "precision", "counted"),
    [(141, None, "bf16"), (80, None, "bf16"), (48, "fp8", "fp8"), (32, "fp8", "fp8"), (24, "int4", "4-bit")],
)
def test_the_widest_precision_that_fits_with_the_worst_case_is_chosen(real, weights, gb, precision, counted):
    config, choice = Config.from_directory(Path(real.model)), on_gpu(real, gb)
    assert choice.settings.quantize == precision
    assert choice.settings.max_batch >= 1 and 8192 <= choice.settings.max_length <= LONGEST
    assert weights[counted] + worst_case(choice.settings, config) < 0.9 * gb * GB


def test_less_memory_shortens_the_context_before_the_batch(real):
    much, less, little = (on_gpu(real, gb).settings for gb in (280, 80, 23))
    assert (much.max_length, much.max_batch, much.prefill) == (LONGEST, 32, 2048)
    assert less.max_length < LONGEST and less.max_batch == 8
    assert little.max_length >= 8192 and little.max_batch < 8


def test_a_given_batch_gets_the_longest_context_that_fits(real, weights):
    config = Config.from_directory(Path(real.model))
    chosen = on_gpu(replace(real, max_batch=2), 21).settings
    assert (chosen.quantize, chosen.max_batch) == ("int4", 2) and chosen.max_length < 8192
    assert weights["4-bit"] + worst_case(chosen, config) < 0.9 * 21 * GB
    assert on_gpu(real, 21).settings.max_batch == 1


def test_the_context_follows_the_measured_workspace(real):
    choice = on_gpu(real, 80)
    less, more = (remeasure(choice, choice.fixed_bytes + change * GB) for change in (-1, 1))
    assert less.settings.max_length > choice.settings.max_length > more.settings.max_length
    for each in (less, more):
        size = each.fit.sequence(each.settings.max_length) * each.settings.max_batch
        assert size + each.fixed_bytes <= each.budget_bytes
        assert f"context {each.settings.max_length}" in each.why
    with pytest.raises(InputError, match="--max-batch"):
        remeasure(choice, choice.budget_bytes)


def test_a_given_context_is_kept_whatever_is_measured(real):
    choice = on_gpu(replace(real, max_length=20_000), 141)
    assert remeasure(choice, choice.fixed_bytes + GB).settings.max_length == 20_000


def test_given_settings_are_kept_and_the_others_follow(real):
    given = on_gpu(replace(real, max_batch=2, max_length=20_000, prefill=512, quantize="fp8"), 141).settings
    assert (given.max_batch, given.max_length, given.prefill, given.quantize) == (2, 20_000, 512, "fp8")
    assert on_gpu(replace(real, max_batch=1), 80).settings.max_length == LONGEST
    assert on_gpu(replace(real, max_length=4096), 90).settings.max_batch == 32
    assert on_gpu(replace(real, quantize="none"), 80).settings.quantize is None


def test_memory_in_use_and_memory_beyond_the_share_are_not_used(real):
    assert on_gpu(real, 80).settings.quantize is None
    assert on_gpu(real, 80, free=40).settings.quantize == "fp8"
    assert on_gpu(replace(real, memory=0.5), 80).settings.quantize == "fp8"


@pytest.mark.parametrize("gb", [22, 24, 32, 48, 80, 90, 141])
def test_the_largest_batch_that_fits_is_chosen(real, weights, gb):
    """Logits of all canvases grow with the batch. One more request would not fit."""
    config = Config.from_directory(Path(real.model))
    chosen = on_gpu(replace(real, max_length=8192), gb).settings
    used = weights[{None: "bf16", "fp8": "fp8", "int4": "4-bit"}[chosen.quantize]]
    assert used + worst_case(chosen, config) <= 0.9 * gb * GB
    more = replace(chosen, max_batch=chosen.max_batch + 1)
    assert chosen.max_batch == 32 or used + worst_case(more, config) > 0.9 * gb * GB


@pytest.mark.parametrize(
    ("given", "gb", "figures"),
    [
        ({}, 8, ("quantized to int4", "2.55 GB", "7.20 GB may be used", "memory=0.9")),
        ({"quantize": "none"}, 48, ("50.5", "43.20 GB may be used")),
        ({"max_batch": 64, "max_length": LONGEST}, 80, ("64 texts of 262144 tokens", "(--max-length)")),
    ],
    ids=["nothing fits", "precision", "batch"],
)
def test_a_model_that_does_not_fit_is_rejected_with_figures(real, given, gb, figures):
    with pytest.raises(InputError) as rejected:
        on_gpu(replace(real, **given), gb)
    assert all(figure in str(rejected.value) for figure in figures), rejected.value


def test_the_advised_context_fits(real):
    with pytest.raises(InputError) as rejected:
        on_gpu(replace(real, max_batch=64, max_length=LONGEST), 80)
    advised = int(str(rejected.value).split("a context of ")[1].split()[0])
    assert on_gpu(replace(real, max_batch=64, max_length=advised), 80).settings.max_length == advised


def test_the_choice_is_reported_with_its_reason(real):
    why = on_gpu(replace(real, max_batch=4), 24).why
    for part in ("24.00 GB", "21.60 GB may be used", "quantized to int4 (widest that fits)", "batch 4 (as requested)"):
        assert part in why


@pytest.mark.parametrize("size", ["8GB", "12GB", "16GB"])
def test_a_card_that_is_too_small_streams_experts_instead_of_refusing(real, size):
    memory = DeviceMemory(141 * GB, 141 * GB, "cuda", host=64 * GB)
    choice = choose(replace(real, memory=size), memory, 2)
    assert choice.settings.quantize == "int4" and choice.settings.max_length >= 8192
    assert choice.budget_bytes == int(size[:-2]) * GB
    assert choice.fixed_bytes + choice.fit.sequence(choice.settings.max_length) <= choice.budget_bytes
    count, copied = len(choice.placement.layers), choice.placement.host_bytes / GB
    streaming = f"the experts of {count} of 30 layers stream from host memory: {copied:.2f} GB copied per step"
    assert streaming in choice.why and "quantized to int4 (narrowest)" in choice.why


def test_a_given_precision_and_batch_are_kept_when_experts_stream(real):
    memory = DeviceMemory(24 * GB, 24 * GB, "cuda", host=64 * GB)
    one, four = (choose(replace(real, quantize="fp8", max_batch=n), memory, 2) for n in (1, 4))
    assert four.settings.quantize == "fp8" and four.settings.max_batch == 4
    assert len(four.placement.layers) > len(one.placement.layers) > 0
    assert choose(replace(real, max_length=100_000), memory, 2).settings.max_length == 100_000


def test_on_a_cpu_values_are_wider_and_prefill_is_smaller(real):
    chosen = choose(real, DeviceMemory(128 * GB, 128 * GB, "cpu"), 4).settings
    assert (chosen.quantize, chosen.prefill) == (None, 256) and chosen.max_batch <= 8
    assert choose(real, DeviceMemory(64 * GB, 64 * GB, "cpu"), 4).settings.quantize == "fp8"


def test_memory_of_a_container_is_its_limit(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       1000 kB\nMemFree:  5 kB\nMemAvailable:    600 kB\n")
    assert host_memory(meminfo, tmp_path) == (1_024_000, 614_400)
    for limit, expected in (("max", (1_024_000, 614_400)), ("500000", (500_000, 300_000))):
        (tmp_path / "memory.max").write_text(limit + "\n")
        (tmp_path / "memory.current").write_text("200000\n")
        assert host_memory(meminfo, tmp_path) == expected
    total, free = host_memory()
    assert total >= free > 0


def test_the_share_of_memory_is_between_0_and_1():
    for share in (0, -1, 1.1):
        with pytest.raises(InputError, match="is not usable"):
            EngineSettings(memory=share)


def test_the_reason_why_a_model_does_not_fit_names_the_options_of_the_command_line(served_model, main):
    with pytest.raises(InputError) as rejected:
        startup.choose(EngineSettings(model=str(served_model), device="cpu", memory=1e-5))
    reason = in_options(str(rejected.value))
    assert "does not fit" in reason and "--memory 1e-05" in reason
    assert main("serve", "--max-batch", "none").code == main("serve", "--prefill", "0").code == 2
