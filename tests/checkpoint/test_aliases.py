"""The alias `diffusiongemma`: the checkpoint for each size of card, by the memory that may be used."""

import pytest

import gesso
from gesso.checkpoint import aliases
from gesso.checkpoint.cache import HubName
from gesso.errors import DoesNotFitError
from gesso.memory.device import SHARE, DeviceMemory

GIB = 1 << 30


@pytest.mark.parametrize("card, source, quantize", [
    (8, "q4", None), (12, "q4", None), (16, "q4", None), (24, "nvfp4", None), (32, "nvfp4", None), (40, "fp8", None),
    (48, "fp8", None), (80, "bf16", "fp8"), (141, "bf16", "fp8"),
])  # fmt: skip
def test_each_card_gets_a_checkpoint_and_the_reason(card: int, source: str, quantize: str | None) -> None:
    usable = DeviceMemory(card * GIB, card * GIB, "cuda").budget(SHARE)
    choice = aliases.choose("cuda", usable, None)
    assert (choice.name, choice.quantize) == (aliases.SOURCES[source].name, quantize)
    assert f"{usable / 1e9:.1f} GB of GPU memory may be used" in choice.reason and "\n" not in choice.reason
    if source in ("fp8", "nvfp4"):  # loaded whole: the workspace of 2.6 GB and some context must fit beside it
        assert aliases.SOURCES[source].gigabytes + 2.6 < usable / 1e9


def test_a_cpu_gets_the_smallest_file_and_a_warning() -> None:
    choice = aliases.choose("cpu", 24 * GIB, "auto")
    assert choice.name == aliases.SOURCES["q4"].name and "about 20 GB" in choice.reason and "slow" in choice.reason


def test_a_cpu_with_too_little_memory_is_an_error_before_the_download() -> None:
    with pytest.raises(DoesNotFitError, match="about 20 GB"):
        aliases.choose("cpu", 16 * GIB, "auto")


def test_a_card_that_is_too_small_is_an_error() -> None:
    with pytest.raises(DoesNotFitError, match="at least 7 GB"):
        aliases.choose("cuda", 4 * GIB, None)


def test_a_given_quantization_starts_from_the_original_weights() -> None:
    choice = aliases.choose("cuda", 20 * GIB, "int4")
    assert (choice.name, choice.quantize) == (aliases.SOURCES["bf16"].name, "int4")


def test_aliases_are_hub_names_or_files() -> None:
    for name in aliases.names():
        assert HubName.parse(str(aliases.hub_name(name))) is not None
    assert aliases.hub_name("diffusiongemma") == aliases.SOURCES["bf16"].name, "without a device, the original"
    assert aliases.hub_name("./diffusiongemma") == "./diffusiongemma"


def test_load_follows_memory_and_device() -> None:
    with pytest.raises(DoesNotFitError, match=r"no GPU; .* 1\.0 GB of host memory"):
        gesso.load("diffusiongemma", device="cpu", memory="1GB")
