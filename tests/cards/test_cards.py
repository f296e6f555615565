"""The description of cards, and the launches that are chosen by it."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gesso.cards.card import SHARED_KIB, Card
from gesso.cards.named import CARDS
from gesso.cards.running import INTERPRETER, card_of, playing

pytest.importorskip("triton")
from gesso.backends.cuda.kernels import attention_tiles, experts, linear, soft, vocab  # noqa: E402
from gesso.backends.cuda.kernels.attention_tiles import Tiles  # noqa: E402
from gesso.backends.cuda.kernels.linear import FP8, Tiling  # noqa: E402

ROOT = Path(__file__).parents[2]
H200, BF16 = CARDS["h200"], torch.bfloat16
CURRENT = [card for card in CARDS.values() if card.runs_kernels]


# --- facts ------------------------------------------------------------------------------------------------------------


def test_shared_memory_of_a_named_card_follows_from_its_capability():
    for card in CARDS.values():
        assert card.shared_kib == SHARED_KIB[card.capability]
        assert card.shared_kib[0] == card.shared_kib[1] - 1, "the system takes 1 KB of each block"


def test_conversions_of_a_named_card_agree_with_its_rates():
    """A card that multiplies in FP8 also converts to it."""
    for card in CARDS.values():
        assert card.converts_e4m3 == (card.fp8_tflops is not None)
    assert [name for name, card in CARDS.items() if card.integrated] == ["dgx-spark"]


def test_the_running_card_is_described_by_its_driver(monkeypatch):
    properties = SimpleNamespace(
        name="NVIDIA GB10", major=12, minor=1, multi_processor_count=48, total_memory=128 * 2**30, is_integrated=1,
        shared_memory_per_block_optin=101376, shared_memory_per_multiprocessor=102400, L2_cache_size=24 * 2**20,
        memory_clock_rate=4_266_000, memory_bus_width=256,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)  # no test has this card
    card, named = card_of(torch.device("cuda", 7)), CARDS["dgx-spark"]
    for field in ("capability", "processors", "shared_kib", "l2_mib", "integrated"):
        assert getattr(card, field) == getattr(named, field), field
    assert card.title == "NVIDIA GB10" and card.total_bytes == 128 * 2**30
    assert card.bandwidth_gbs == pytest.approx(named.bandwidth_gbs, rel=0.01)


def test_a_card_can_be_played():
    assert card_of(torch.device("cpu")) is INTERPRETER
    with playing(H200):
        assert card_of(torch.device("cpu")) is H200
    assert card_of(torch.device("cpu")) is INTERPRETER


# --- choices ----------------------------------------------------------------------------------------------------------


def dense(card: Card, table: dict, tokens: int, columns: list[int], dtype: torch.dtype, parts: int = 1) -> Tiling:
    pairs = 1 if table is linear.PLAIN else 2
    return linear.choose_tiling(table, tokens, columns, dtype, card, parts, pairs)[0]


def test_choices_on_an_h200_are_those_that_were_measured(monkeypatch):
    """The bits and the speed of all published figures depend on them."""
    monkeypatch.setattr(attention_tiles, "_has_roles", lambda card: card is H200)  # Gluon needs a GPU
    attention_tiles.tiles.cache_clear()
    chosen = {(dim, rows): attention_tiles.tiles(dim, BF16, H200, rows) for dim in (256, 512) for rows in (64, 4096)}
    attention_tiles.tiles.cache_clear()
    assert chosen == {
        (256, 64): Tiles(rows=64, keys=64, values=256, warps=4, stages=3, splits=4),
        (256, 4096): Tiles(rows=128, keys=64, values=256, warps=4, stages=2, splits=4, roles=True),
        (512, 64): Tiles(rows=64, keys=64, values=256, warps=4, stages=1, splits=2),
        (512, 4096): Tiles(rows=128, keys=64, values=256, warps=4, stages=1, splits=2, roles=True),
    }
    qkv, gate = [4096, 2048, 2048], [2112]
    assert dense(H200, linear.PLAIN, 256, qkv, BF16) == Tiling(128, 128, 64, 8, 6)
    assert dense(H200, linear.PLAIN, 2048, qkv, BF16) == Tiling(128, 128, 64, 8, 3)
    assert dense(H200, linear.PLAIN, 256, [2816], FP8, parts=3) == Tiling(128, 128, 128, 8, 6)
    assert dense(H200, linear.PLAIN, 1, [2816], FP8, parts=3) == Tiling(64, 64, 256, 4, 6)
    assert dense(H200, linear.GATED, 256, gate, BF16) == Tiling(64, 32, 128, 4, 4)
    assert experts.tiling_for(experts.DOWN, BF16, 2048, H200) == Tiling(128, 256, 64, 8, 4)
    assert experts.tiling_for(experts.UP, FP8, 256, H200) == Tiling(64, 64, 128, 4, 3)
    assert vocab.logits_tiling(H200, BF16, low=False) == (vocab.LOGITS, 1)
    assert vocab.logits_tiling(H200, BF16, low=True) == (vocab.LOGITS_LOW, 2)
    assert [soft.mean_tiling(H200, low=low) for low in (False, True)] == [soft.MEAN, soft.MEAN_LOW]


def test_every_tiling_is_an_h200s_own():
    """None of the tables has an entry that is cut on the card that it was measured on."""
    for table, pairs in (
        (linear.PLAIN, 1),
        (linear.GATED, 2),
        (linear.GATED_LOW, 2),
        (experts.UP, 2),
        (experts.DOWN, 1),
    ):
        for dtype, entries in table.items():
            assert all(linear.fitted(tiling, H200, dtype, pairs) == tiling for _, tiling in entries)


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_chosen_tilings_fit_the_shared_memory_of_every_card(card):
    for dtype in (BF16, torch.float32):
        for dim in (64, 256, 512):
            tiles = [attention_tiles.tiles(dim, dtype, card, rows) for rows in (16, 4096)]
            assert all(each.shared_bytes(dim, dtype.itemsize, card) < card.block_bytes for each in tiles)
            assert len({(each.keys, each.splits) for each in tiles}) == 1, "short and long segments sum alike"
    for dtype in (BF16, FP8, torch.float32):
        for tokens in (1, 256, 2048):
            assert dense(card, linear.PLAIN, tokens, [4096, 2048, 2048], dtype)
            assert dense(card, linear.GATED, tokens, [2112], dtype)
            for table in (experts.UP, experts.DOWN):
                assert experts.tiling_for(table, dtype, tokens, card)
    for low in (False, True):
        assert vocab.logits_tiling(card, BF16, low=low) and soft.mean_tiling(card, low=low)


def test_large_tiles_need_as_many_programs_per_processor_on_every_card():
    """64 tiles of columns fill 132 SMs with two tiles of rows. On 170 SMs they do not, so tiles are smaller."""
    qkv = [4096, 2048, 2048]
    assert dense(H200, linear.PLAIN, 256, qkv, BF16).rows == 128
    assert dense(CARDS["rtx-5090"], linear.PLAIN, 256, qkv, BF16).rows == 64


# --- one description --------------------------------------------------------------------------------------------------

ASKS = re.compile(r"get_device_capability|get_device_properties|multi_processor_count|\.__version__\.|get_arch_list")


def test_only_the_description_of_cards_asks_for_capabilities_and_versions():
    allowed = {"gesso/cards/running.py", "gesso/memory/device.py"}  # the latter: the name of a GPU for nvidia-smi
    asking = {str(path.relative_to(ROOT)) for path in (ROOT / "gesso").rglob("*.py") if ASKS.search(path.read_text())}
    assert asking <= allowed


def test_only_the_description_of_cards_compares_capabilities():
    for path in (ROOT / "gesso").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        is_description = path.name == "card.py" and path.parent.name == "cards"
        if is_description or "capability" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Compare):
                names = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                assert "capability" not in names, f"{path.relative_to(ROOT)}:{node.lineno}"
