"""The computed figures of docs/guides/cpu.md."""

import re
from pathlib import Path

import pytest

from gesso.checkpoint import random_weights
from gesso.memory.budget import CONTEXT, PREFILL_CPU, Budget

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "cpu.md").read_text(encoding="utf-8")
CONFIG = random_weights.config_of("26b-a4b")
BUDGET = Budget(CONFIG, 0, 4, PREFILL_CPU, on_cpu=True)


def rows(columns: int) -> list[list[str]]:
    """Return the cells of the page's table with this many columns, without its two first rows."""
    lines = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines if len(line) == columns][2:]


def test_limits_are_bandwidth_over_bytes_per_token() -> None:
    found = rows(5)
    assert len(found) == 7
    for _, bandwidth, *limits, _ in found:
        for quantize, limit in zip(("int4", "int4-int8"), limits, strict=True):
            size = BUDGET.token(quantize) / 1e9
            assert float(limit) == pytest.approx(float(bandwidth) / size, rel=0.01), (quantize, bandwidth)
            assert f"{size:.2f} GB" in PAGE


def test_memory_is_that_of_the_budget() -> None:
    found = rows(3)
    assert [row[0].strip("`") for row in found] == ["int4", "int4-int8", "fp8"]
    for quantize, *sizes in found:
        weights = BUDGET.weights(quantize.strip("`"))
        total = weights + BUDGET.workspace(1) + BUDGET.sequence(CONTEXT)
        shown = [float(re.sub(r" GB$", "", size)) for size in sizes]
        assert shown == [pytest.approx(weights / 1e9, abs=0.006), pytest.approx(total / 1e9, abs=0.06)]
