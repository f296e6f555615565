"""The first line of `gesso info MODEL --gpu CARD`, without a network: what the alias would choose on the card."""

import json
import re

import pytest

from gesso.cards.named import CARDS
from gesso.checkpoint.aliases import SOURCES, choose
from gesso.cli import main as cli
from gesso.info.verdict import TITLES
from gesso.memory.device import SHARE, DeviceMemory

NAMES = ("diffusiongemma", "random:26b-a4b")


@pytest.fixture(autouse=True)
def offline(hub):
    """Let no test ask the hub."""
    yield
    assert hub.requests == []


def first_line(capsys, *arguments):
    assert cli.main(["info", *arguments]) == 0
    return capsys.readouterr().out.partition("\n")[0]


def test_nineteen_cards_are_known():
    assert len(CARDS) == 19


# With streamed experts, in four bits, in fp8, and where everything fits.
@pytest.mark.parametrize("name", ["rtx-5060", "rtx-4090", "rtx-5090", "h200"])
def test_the_verdict_names_what_the_alias_chooses_on_the_card(name, capsys):
    """The alias is asked as `loading.choose_checkpoint` asks it, about a GPU with the memory of the card."""
    card = CARDS[name]
    empty = DeviceMemory(total=card.driver_mib * 2**20, free=card.usable_bytes, device="cuda")
    choice = choose(empty.device, empty.budget(SHARE), None)
    (source,) = (name for name, published in SOURCES.items() if published.name == choice.name)
    of_alias, of_shape = (first_line(capsys, name, "--gpu", card.name) for name in NAMES)
    assert of_alias == of_shape
    assert re.match(rf"Fits an? {card.memory_gb:g} GB card( in part)?: {re.escape(TITLES[source])}, ", of_alias)
    assert of_alias.endswith(f"Run: gesso chat diffusiongemma (downloads {SOURCES[source].gigabytes} GB)")
    assert ("quantized" in TITLES[source]) == (choice.quantize is not None)


def test_a_24_gb_card_gets_the_answer_in_one_line(capsys):
    assert first_line(capsys, "diffusiongemma", "--gpu", "rtx-4090") == (
        "Fits a 24 GB card: NVFP4, 16.4 of 25.8 GB. Run: gesso chat diffusiongemma (downloads 18.8 GB)"
    )


def test_a_card_that_is_too_small_says_that_experts_stay_in_host_memory(capsys):
    line = first_line(capsys, "diffusiongemma", "--gpu", "rtx-5060")
    assert line.startswith("Fits an 8 GB card in part: ") and "experts of 26 layers stay in host memory" in line


def test_the_shape_is_described_without_files(capsys):
    assert cli.main(["info", "diffusiongemma", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["path"], report["files"], report["problems"]) == ("", [], [])
    assert report["parameters"]["total"] == pytest.approx(25.8e9, rel=0.01)


def test_any_other_model_gets_the_verdict_of_its_plan(tiny_directory, capsys):
    line = first_line(capsys, str(tiny_directory), "--gpu", "rtx-4060")
    assert line.startswith("Fits an 8 GB card: bf16, 0.0 of 8.6 GB. Run: gesso chat -m ")
