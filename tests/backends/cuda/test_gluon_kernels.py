"""Kernels in Gluon are optional: a module that cannot be imported disables its own kernels only, and is named."""

import ast
import sys
from pathlib import Path

import pytest
import torch

gluon = pytest.importorskip("gesso.backends.cuda.kernels.gluon_kernels")

import gesso  # noqa: E402
from gesso.backends.cuda.kernels import attention_tiles, feed_forward  # noqa: E402
from gesso.cards.named import CARDS  # noqa: E402
from gesso.cards.running import playing  # noqa: E402
from tests.backends.cuda.gluon_imports import first_imports  # noqa: E402

CUDA = torch.device("cuda")
GLUON = ("attention_hopper", "experts_int4_hopper", "feed_forward_hopper", "gluon_names", "int4_hopper")


@pytest.fixture
def h100():
    """Let the running card be an H100, and every import be the first."""
    attention_tiles.tiles.cache_clear()
    with playing(CARDS["h100"]), first_imports():
        yield CARDS["h100"]
    attention_tiles.tiles.cache_clear()


def test_a_gluon_module_that_fails_disables_its_kernels_only_and_is_named_once(h100, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, f"{gluon.__package__}.attention_hopper", None)  # importing it raises an error
    for _ in range(2):
        (line,) = gluon.missing_kernels(CUDA)
    assert "attention_hopper (attention with many rows)" in line and "Triton" in line
    assert caplog.messages == [line]
    assert not attention_tiles.tiles(256, torch.bfloat16, h100).roles
    assert feed_forward._has_kernel(CUDA)


def test_kernels_run_in_gluon_if_all_modules_can_be_imported(h100, caplog):
    assert gluon.missing_kernels(CUDA) == []
    assert attention_tiles.tiles(256, torch.bfloat16, h100).roles and feed_forward._has_kernel(CUDA)
    assert not caplog.messages


def test_a_kernel_that_does_not_compile_switches_off_the_gluon_kernels_of_its_family_first(h100, caplog):
    gluon.missing_kernels(CUDA)
    assert gluon.switch_off("attention", "CompilationError: removed") and not gluon.switch_off("attention", "again")
    attention_tiles.tiles.cache_clear()
    assert not attention_tiles.tiles(256, torch.bfloat16, h100).roles and feed_forward._has_kernel(CUDA)
    assert len(caplog.messages) == 1 and "CompilationError: removed" in caplog.messages[0]


def test_no_other_card_imports_gluon():
    with playing(CARDS["rtx-5090"]), first_imports() as imported:
        assert gluon.missing_kernels(CUDA) == []
        assert not attention_tiles.tiles(256, torch.bfloat16, CARDS["rtx-5090"]).roles
        assert not imported


def test_only_the_modules_of_gluon_kernels_import_gluon():
    importing = set()
    for file in Path(gesso.__file__).parent.rglob("*.py"):
        text = file.read_text()
        if "gluon" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.startswith("triton.experimental") or name.endswith(GLUON) for name in named):
                importing.add(file.stem)
    assert importing == set(GLUON)
