"""The table of compiled kernels: its page, the hashes of kernels, and a small sample compiled for a card."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("triton")

import triton  # noqa: E402

from gesso.cards.named import CARDS  # noqa: E402
from tools.cards.compile import asynchronous_copies, first_line  # noqa: E402
from tools.cards.page import PAGE, architecture, render  # noqa: E402
from tools.cards.sources import source_hash  # noqa: E402
from tools.cards.table import COMPILED, MODULES, ROOT, Row, Table  # noqa: E402

KERNELS = ROOT / "gesso" / "backends" / "cuda" / "kernels"


def test_the_compiled_cards_have_the_capabilities_of_all_named_cards():
    assert {CARDS[name].capability for name in COMPILED} == {card.capability for card in CARDS.values()}


def test_every_module_that_launches_a_kernel_has_a_family():
    launching = {
        path.stem for path in KERNELS.glob("*.py") if re.search(r"^    _?\w+\[.+\]\($", path.read_text(), re.M)
    }
    assert launching <= {module for modules in MODULES.values() for module in modules}


def test_the_page_is_that_of_the_table():
    assert PAGE.read_text() == render(Table.read())


def test_the_docs_claim_no_architecture_that_the_table_does_not_have():
    table = Table.read()
    compiled = {architecture(card) for results in table.versions.values() for card in results["cards"]}
    claimed = set(re.findall(r"\bsm_\d+", (ROOT / "docs" / "guides" / "hardware.md").read_text()))
    assert claimed <= compiled


def test_kernels_have_not_changed_since_the_table_was_made():
    """Skips with the names of those that have: `make cards` takes half an hour."""
    table = Table.read()
    if triton.__version__ not in table.versions:
        pytest.skip(f"the table has no results of Triton {triton.__version__}; run make cards")
    changed = []
    for kernel, before in table.hashes(triton.__version__).items():
        module, name = kernel.split(".")
        function = getattr(import_module(f"gesso.backends.cuda.kernels.{module}"), name)
        if source_hash(function) != before:
            changed.append(kernel)
    if changed:
        pytest.skip(f"changed since the table of compiled kernels was made: {', '.join(changed)}; run make cards")


def test_rows_keep_their_values_in_the_file():
    compiled = {
        "triton": "3.9.0",
        "card": "a100",
        "off": {"fp8": ["experts"]},
        "rows": [
            {
                "kernel": "rows._join", "variant": "warps=4", "hash": "1", "models": ["bf16", "mini"],
                "registers": 40, "frame": 8, "shared": 1024, "copies": "TMA", "error": "",
            },
        ],
    }  # fmt: skip
    table = Table({})
    table.add(compiled)
    table.add(compiled)
    (row,) = table.rows("3.9.0", "a100")
    assert row == Row("rows._join", "warps=4", ("bf16", "mini"), 40, 8, 1024, "TMA", "")
    assert table.off("3.9.0", "a100") == {"fp8": ["experts"]} and table.hashes("3.9.0") == {"rows._join": "1"}
    page = render(table)
    assert "| sm_80 | `a100` |" in page and "0 of 1" in page and "`rows._join`: sm_80 8" in page
    assert "fp8 has no kernels for experts" in page


def hash_of(source: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    directory.mkdir()
    (directory / "kernel_to_hash.py").write_text(source)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(directory)
        patch.delitem(sys.modules, "kernel_to_hash", raising=False)
        return source_hash(import_module("kernel_to_hash").outer)


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [("Add.", "Sum.", False), ("# a limit", "", False), ("x + LIMIT", "x - LIMIT", True), ("= 4", "= 5", True)],
)
def test_hashes_follow_code_and_constants_but_not_comments(tmp_path, monkeypatch, before, after, differs):
    source = 'LIMIT = 4\ndef outer(x):\n    """Add."""\n    return x + LIMIT  # a limit\n'
    changed = source.replace(before, after)
    assert changed != source
    hashes = {hash_of(text, tmp_path / name, monkeypatch) for name, text in (("first", source), ("second", changed))}
    assert (len(hashes) == 2) == differs


def test_errors_of_the_assembler_are_one_line():
    text = (
        "Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas /tmp/x.ptx, line 9; error   : Feature needs sm_90\n"
    )
    assert first_line(RuntimeError(text)) == "RuntimeError: Feature needs sm_90"
    assert asynchronous_copies("cp.async.bulk.tensor") == "TMA" and not asynchronous_copies("ld.global")


@pytest.mark.slow
def test_kernels_compile_for_a_card_without_a_gpu(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.compile_sample"], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "compiled", done.stderr[-2000:]
