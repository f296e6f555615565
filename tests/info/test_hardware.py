"""Plans for graphics cards: independent figures, invariants, and the tables in docs/guides/hardware.md."""

import json
import re
import subprocess
import sys
from dataclasses import asdict, fields, replace
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from gesso.cards.card import Card
from gesso.cards.named import CARDS, find
from gesso.checkpoint.vision import vision_bytes
from gesso.cli import main as cli
from gesso.errors import InputError
from gesso.info.fit import BATCHES, RULES, CardPlan, Fit, expert_share, plan
from gesso.info.precisions import PRECISIONS
from gesso.info.render import render_plan
from gesso.memory.budget import PREFILL_GPU
from gesso.memory.workspace import workspace_bytes
from gesso.model.config import Config
from tests.info.test_info import REAL, TINY, write

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "hardware.md"
H200 = CARDS["h200"]
VISION = vision_bytes(Config.from_dict(REAL), 2)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A cached function that plans the 26B for a card."""
    directory = write(tmp_path_factory.mktemp("real"), REAL)
    return cache(lambda card, steps=16: plan(Config.from_directory(directory), card, steps))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("tiny"), TINY)


def workspace(batch: int) -> int:
    """Return the workspace of the 26B, which does not depend on the card."""
    return workspace_bytes(Config.from_dict(REAL), batch, PREFILL_GPU, 256)


def of(found: CardPlan, precision: str) -> Fit:
    return next(fit for fit in found.fits if fit.precision == precision)


def text_of(found: CardPlan) -> str:
    out = StringIO()
    render_plan(found, Console(file=out, width=80))
    return out.getvalue()


def variants(**changes: float | None) -> Card:
    """Return a card with unlimited memory and the given changes."""
    return replace(H200, driver_mib=10**9, **changes)


# --- independent figures ------------------------------------------------------------------------------------------


def test_step_of_the_26b_reads_52_gigabytes_in_bf16(real):
    """Computed from the published count: text weights at 2 bytes, the embedding once more, the cache at 8K."""
    weights = 2 * (25_250_986_752 + 60)  # with one scalar per layer and stack, which the card omits
    decoder_only = weights - 2 * 30
    embedding = 2 * 262_144 * 2816
    ring_and_globals = 25 * 2 * (1023 + 64) * 8 * 256 * 2 + 20_480 * 8192
    (floor, *_) = of(real(H200), "bf16").floors
    assert floor.expert_share == pytest.approx(1, abs=1e-7)
    assert floor.bytes == pytest.approx(decoder_only + embedding + ring_and_globals, rel=1e-6)
    assert floor.memory_seconds == pytest.approx(52.36e9 / 4.8e12, rel=1e-3)


def test_step_of_the_26b_takes_two_point_eight_trillion_operations(real):
    """Computed layer by layer, as matrix products of a canvas of 256 tokens."""
    tokens, hidden, total = 256, 2816, 0
    total += 3 * 2 * tokens * hidden * 2112  # self-conditioning
    total += 2 * 2 * tokens * hidden * 262_144  # lm_head, soft embedding
    for layer in range(30):
        dim, kv_heads, keys = (512, 2, 8192 + 256) if layer % 6 == 5 else (256, 8, 1023 + 256)
        projections = 2 * 16 * dim + kv_heads * dim * (1 if layer % 6 == 5 else 2)  # query, output, key, value
        total += 2 * tokens * hidden * projections
        total += 2 * 2 * tokens * keys * 16 * dim  # scores, values
        total += 2 * tokens * hidden * 128 + 3 * 2 * tokens * hidden * (2112 + 8 * 704)  # router, MLP, experts
    for fit in real(H200).fits:
        assert fit.floors[0].operations == total
    assert round(total / 1e12, 2) == 2.83


def test_only_matrices_run_at_the_rate_of_their_precision(real):
    """Only the products with active weights, without router and norms, run twice as fast in fp8."""
    active, router = 3_840_375_552, 30 * 128 * 2816
    norms = 30 * (8 * 2816 + 128) + 25 * 2 * 256 + 5 * 2 * 512 + 2 * 2816
    matrices = 2 * 256 * (active - router - norms)
    bf16, fp8, _ = (fit.floors[0].compute_seconds for fit in real(variants(bf16_tflops=1000.0, fp8_tflops=2000.0)).fits)
    assert bf16 - fp8 == pytest.approx(matrices / 1e15 - matrices / 2e15, rel=1e-9)


def test_half_the_steps_give_twice_the_tokens_per_second(real):
    sixteen, eight = (of(real(H200, steps=n), "fp8").floors[0] for n in (16, 8))
    assert eight.tokens_per_second == pytest.approx(2 * sixteen.tokens_per_second)
    assert eight.seconds == sixteen.seconds


def test_expert_share_matches_a_simulation():
    import random

    draws = random.Random(0)
    hit = [len({e for _ in range(24) for e in draws.sample(range(128), 8)}) / 128 for _ in range(400)]
    assert expert_share(128, 8, 24) == pytest.approx(sum(hit) / len(hit), abs=0.01)
    assert expert_share(128, 8, 1) == 8 / 128
    assert expert_share(4, 4, 1) == 1
    assert expert_share(128, 8, 256) > 0.9999999


def test_largest_context_is_the_last_that_fits(tmp_path):
    directory = write(tmp_path, REAL)
    weights = of(plan(Config.from_directory(directory), H200), "4-bit").weight_bytes
    rings = 2 * 25 * 2 * (1023 + 64) * 8 * 256 * 2  # in use, and their copy
    for tokens in (20_000, 100_001):
        need = weights + workspace(1) + rings + 20_480 * tokens
        exact = replace(H200, driver_mib=need // 2**20 + 1, system_gb=(2**20 - need % 2**20) / 1e9)
        assert exact.usable_bytes == need
        assert of(plan(Config.from_directory(directory), exact), "4-bit").largest_context == tokens
        one_less = replace(exact, system_gb=exact.system_gb + 1e-9)
        assert of(plan(Config.from_directory(directory), one_less), "4-bit").largest_context == tokens - 1


def test_untied_encoder_takes_memory_but_no_time(tiny, tmp_path):
    untied = write(tmp_path, TINY | {"tie_word_embeddings": False})
    one, two = (of(plan(Config.from_directory(directory), H200), "bf16") for directory in (tiny, untied))
    assert two.weight_bytes > 1.5 * one.weight_bytes
    assert two.floors[0].bytes == one.floors[0].bytes  # its head is a separate tensor that replaces the second read
    assert two.floors[0].operations == one.floors[0].operations


# --- invariants ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["bandwidth_gbs", "bf16_tflops", "fp8_tflops", "fp4_tflops"])
def test_better_card_is_never_slower(real, change):
    base = variants(fp4_tflops=4000.0, bandwidth_gbs=1000)
    better = replace(base, **{change: 2 * getattr(base, change)})
    for slow, fast in zip(real(base).fits, real(better).fits, strict=True):
        for before, after in zip(slow.floors, fast.floors, strict=True):
            assert after.seconds <= before.seconds
            assert after.tokens_per_second >= before.tokens_per_second


def test_native_lower_precision_never_needs_more_memory_or_time(real):
    fits = real(variants(fp4_tflops=4000.0)).fits
    for wide, narrow in zip(fits, fits[1:], strict=False):
        assert narrow.weight_bytes < wide.weight_bytes
        assert narrow.largest_context >= wide.largest_context
        for before, after in zip(wide.floors, narrow.floors, strict=True):
            assert after.seconds <= before.seconds


def test_larger_batch_is_never_faster_per_step_or_slower_per_token(real):
    for card in CARDS.values():
        for fit in real(card).fits:
            for small, large in zip(fit.floors, fit.floors[1:], strict=False):
                assert large.seconds >= small.seconds
                assert large.tokens_per_second >= small.tokens_per_second * (1 - 1e-9)


def test_experts_stream_where_a_precision_does_not_fit(real):
    """Computed from the shape: a layer has 128 experts of three matrices 704 by 2816 at 4.5 bits per value."""
    layer = 128 * 3 * 704 * 2816 * 4.5 / 8
    for name, rate in {"rtx-5060": 0.8 * 31.5, "rtx-4070": 0.8 * 31.5, "rtx-4080": 0.8 * 31.5}.items():
        fit = of(real(CARDS[name]), "4-bit")
        assert fit.missing_bytes and fit.streamed and fit.floors[0].limit == "PCIe"
        assert fit.streamed.host_bytes == fit.streamed.layers * layer
        assert fit.floors[0].seconds == pytest.approx(fit.streamed.host_bytes / (rate * 1e9), rel=1e-3)
        kept = fit.weight_bytes - VISION - fit.streamed.host_bytes + 2 * layer  # the tower stays in host memory, too
        assert fit.free_bytes == CARDS[name].usable_bytes - workspace(1) - kept
    for card in CARDS.values():
        for fit in real(card).fits:
            assert (fit.streamed is not None) <= (fit.missing_bytes > 0 and card.pcie is not None)
    text = " ".join(text_of(real(CARDS["rtx-4070"])).split())
    assert "host memory, copied per step" in text and "every step copies them" in text


def test_precision_not_in_hardware_computes_at_the_rate_of_bf16(real):
    """On Hopper or Ada, 4-bit has the bytes of 4-bit, and its experts run at the rate of bf16."""
    bf16, fp8, four = real(variants(fp4_tflops=None)).fits
    assert not four.in_hardware
    assert four.floors[0].bytes < bf16.floors[0].bytes / 2
    for wide, narrow, narrower in zip(bf16.floors, fp8.floors, four.floors, strict=True):
        assert narrow.compute_seconds < narrower.compute_seconds < wide.compute_seconds
    bf16, _, four = real(variants(fp8_tflops=None, fp4_tflops=None)).fits
    for wide, narrow in zip(bf16.floors, four.floors, strict=True):
        assert narrow.compute_seconds == wide.compute_seconds
    assert {name for name, card in CARDS.items() if card.has("4-bit")} == {
        "rtx-5060", "rtx-5070-ti", "rtx-5080", "rtx-5090", "rtx-pro-6000", "dgx-spark", "dgx-station", "b200",
    }  # fmt: skip
    assert {name for name, card in CARDS.items() if not card.has("fp8")} == {"rtx-3060", "rtx-3090", "a100"}


# --- recommendation -----------------------------------------------------------------------------------------------


def test_model_that_does_not_fit_reports_missing_bytes(real):
    small = replace(H200, driver_mib=8 * 1024, pcie=None)
    found = real(small)
    assert found.choice is None
    assert found.chosen() is None
    missing = 16.42e9 + workspace(1) + 0.613e9 - 8 * 2**30
    assert of(found, "4-bit").missing_bytes == pytest.approx(missing, abs=1e7)
    assert all(fit.largest_context == 0 and not fit.floors for fit in found.fits)
    text = " ".join(text_of(found).split())
    assert "Does not fit" in text and "11.00 GB short" in text and "tokens/s at" not in text


def test_choice_is_fp8_where_it_fits_and_is_faster(real, tiny):
    choices = {name: real(card).choice for name, card in CARDS.items()}
    small = {name for name, card in CARDS.items() if card.memory_gb <= 24}
    assert choices == {name: "4-bit" if name in small else "fp8" for name in CARDS}
    assert "fp8 is 3.88 GB short" in real(CARDS["rtx-4090"]).reason
    assert "computes it in bf16" in real(CARDS["rtx-4090"]).reason
    assert "bf16 is" in real(CARDS["rtx-5090"]).reason and "short" in real(CARDS["rtx-5090"]).reason
    assert plan(Config.from_directory(tiny), H200).choice == "bf16", "fp8 would gain little"


def test_short_context_is_computed_at_its_own_length(tmp_path):
    text = TINY["text_config"] | {"max_position_embeddings": 100}
    found = plan(Config.from_directory(write(tmp_path, TINY | {"text_config": text})), H200)
    assert found.context == 100
    assert [room.context for room in found.fits[0].rooms] == [100]
    assert found.fits[0].largest_context == 100


# --- cards --------------------------------------------------------------------------------------------------------


def test_unknown_card_is_rejected_with_the_known_ones():
    with pytest.raises(InputError, match="rtx-2080") as error:
        find("rtx-2080")
    assert all(name in str(error.value) for name in CARDS)


def test_every_card_has_a_source_and_plausible_figures():
    for name, card in CARDS.items():
        assert card.name == name
        assert "checked" in card.source, "the source states whether figures were checked"
        assert 0.85 * card.memory_gb * 1e9 < card.usable_bytes <= card.memory_gb * 2**30
        rates = [r for r in (card.bf16_tflops, card.fp8_tflops, card.fp4_tflops) if r is not None]
        assert rates == sorted(rates)
    assert all("memory" in CARDS[name].note.lower() for name in ("dgx-spark", "dgx-station"))


# --- output -------------------------------------------------------------------------------------------------------


def test_rendered_report_fits_80_columns_and_is_complete(real):
    for card in CARDS.values():
        text = text_of(real(card))
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
        joined = " ".join(text.split())
        assert card.title in joined and all(rule in joined for rule in RULES)
        assert card.source in re.sub(r"\s+", " ", joined)


def test_gpu_option_adds_the_plan_to_the_report(tiny, capsys):
    assert cli.main(["info", str(tiny), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert "gpu" not in plain
    assert cli.main(["info", str(tiny), "--json", "--gpu", "h200", "--steps", "4"]) == 0
    full = json.loads(capsys.readouterr().out)
    added = full.pop("gpu")
    assert full.pop("verdict").startswith("Fits a 141 GB card: bf16")
    assert full == plain
    assert added == json.loads(json.dumps(asdict(plan(Config.from_directory(tiny), H200, 4))))
    assert added["steps"] == 4 and set(added) == {field.name for field in fields(CardPlan)}
    assert cli.main(["info", str(tiny), "--gpu", "h200"]) == 0
    assert "On the H200" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--gpu", "toaster"], "rtx-4090"), (["--steps", "4"], "--gpu"), (["--gpu", "h100", "--steps", "0"], "--steps")],
)
def test_invalid_options_are_rejected_before_the_model_is_read(arguments, said, capsys, tmp_path):
    assert cli.main(["info", str(tmp_path / "nowhere"), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_importing_fit_does_not_import_torch():
    code = "import sys, gesso.info.fit, gesso.cards.named; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- docs ---------------------------------------------------------------------------------------------------------


def test_tables_in_the_docs_match_the_code(real):
    page = PAGE.read_text(encoding="utf-8")
    for name, card in CARDS.items():
        found = real(card)
        assert re.search(rf"^{re.escape(chosen_row(name, found))} .* \|$", page, re.MULTILINE), chosen_row(name, found)
        assert f"\n{precision_row(name, found)}\n" in page, precision_row(name, found)


def test_docs_describe_every_card_and_the_command():
    page = PAGE.read_text(encoding="utf-8")
    for name, card in CARDS.items():
        assert f"**{card.title}.**" in page
        assert page.count(f"| `{name}` |") == 2
        assert page.count(f"| {card.title} | {card.memory_gb:g} GB |") == 1, "the first table"
    assert "gesso info diffusiongemma --gpu" in page


def chosen_row(name: str, found: CardPlan) -> str:
    """Return the computed columns of the first table: the chosen precision."""
    fit = found.chosen()
    assert fit is not None
    by_batch = {floor.batch: f"{floor.tokens_per_second:,.0f}" for floor in fit.floors}
    cells = [
        f"`{name}`",
        f"{found.usable_bytes / 1e9:.1f}",
        f"{fit.precision}",
        f"{fit.weight_bytes / 1e9:.1f}",
        f"{fit.largest_context:,}",
        " / ".join(f"{room.sequences}" for room in fit.rooms),
        f"{fit.floors[0].seconds * 1e3:.1f}",
        *(by_batch.get(batch, "–") for batch in BATCHES),
    ]
    return "| " + " | ".join(cells) + " |"


def precision_row(name: str, found: CardPlan) -> str:
    """Return a row of the second table: each precision at batch 1, with the missing bytes, or these alone."""
    cells = [
        f"{fit.floors[0].seconds * 1e3:,.0f} ({fit.floors[0].limit}; {fit.missing_bytes / 1e9:.1f} GB short)"
        if fit.streamed
        else f"{fit.missing_bytes / 1e9:.1f} GB short"
        if fit.missing_bytes
        else f"{fit.floors[0].seconds * 1e3:.1f} ({fit.floors[0].limit})"
        for fit in (of(found, precision) for precision in PRECISIONS)
    ]
    return "| " + " | ".join([f"`{name}`", *cells]) + " |"
