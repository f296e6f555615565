"""The workspace bound: close to measured memory, with the constants of the kernels."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gesso.cards.named import CARDS
from gesso.diffusion.hash import position_keys
from gesso.engine import seen
from gesso.memory import workspace
from gesso.memory.budget import Budget
from gesso.memory.workspace import CONTEXT_BYTES, workspace_bytes
from gesso.model.config import Config
from gesso.model.vision import Vision
from tests.info.test_info import REAL, write
from tests.live_bytes import LiveBytes

GB = 10**9


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return Config.from_directory(write(tmp_path_factory.mktemp("real"), REAL))


@pytest.mark.parametrize(("batch", "measured"), [(8, 2.95), (32, 10.06)])
def test_workspace_bound_is_between_measured_memory_and_1_5_times_that(real, batch, measured):
    """Measured on an H200 at the 26B shape in fp8: reserved after batches of many sizes, without the CUDA context."""
    bound = workspace_bytes(real, batch, 2048, 256) - CONTEXT_BYTES
    assert measured * GB <= bound <= 1.5 * measured * GB


@torch.no_grad()
def test_workspace_bound_covers_what_the_vocabulary_kernels_allocate(real):
    vocab = pytest.importorskip("gesso.backends.cuda.kernels.vocab")
    tokens, shape = 40, replace(real, vocab_size=5000, hidden_size=64)
    head_VH, hidden_TH = torch.zeros(5000, 64).half(), torch.zeros(tokens, 64).half()
    given = (head_VH, hidden_TH, torch.ones(tokens), position_keys(5, 0, 1, 0, tokens, torch.device("cpu")))
    with LiveBytes(nn.ParameterList(nn.Parameter(each, requires_grad=False) for each in given)) as live:
        vocab.predict(hidden_TH, head_VH, head_VH, 1.0, 30.0, *given[2:])
    bound = workspace._vocabulary_bytes(shape, tokens, 2)
    assert 0.7 * bound < live.peak <= bound


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_workspace_bound_covers_the_vision_pass_of_the_largest_image(real, monkeypatch, dtype):
    """On the meta device, where nothing is computed, at the real size. Attention makes no matrix of all scores."""
    layers = replace(real.vision, num_hidden_layers=2)
    with torch.device("meta"):
        vision, pixels_PI = Vision(layers, real.hidden_size).to(dtype), torch.empty(84 * 120, 768, dtype=torch.uint8)
    # On the meta device, torch has no attention without a matrix of all scores.
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, *_, **__: torch.empty_like(q))
    with LiveBytes(vision) as live:
        assert len(vision(pixels_PI, 84, 120, dtype)) == workspace.IMAGE_TOKENS
    bound = workspace._vision_bytes(real, dtype.itemsize)
    assert 0.8 * bound < live.peak <= bound


def test_images_enlarge_the_workspace(real):
    """If prompts are read in smaller pieces than the largest image has tokens, as on a CPU; and by kept features."""
    assert workspace_bytes(real, 1, 2048, 256) == workspace_bytes(real, 1, 2048, 256, images=True)
    small, large = (workspace_bytes(real, 1, prefill, 256, 4, images=True) for prefill in (256, workspace.IMAGE_TOKENS))
    assert small == large == workspace_bytes(real, 1, workspace.IMAGE_TOKENS, 256, 4)
    gpu, cpu = (Budget(real, 0, 4, 256, on_cpu=on_cpu, vision=1).workspace(1) for on_cpu in (False, True))
    assert cpu - gpu == workspace.SEEN_BYTES == seen.LIMIT


def test_workspace_grows_with_the_work(real):
    for name, values in {"batch": range(1, 40), "prefill": (256, 2048, 8192), "canvas_length": (16, 64, 256)}.items():
        base = {"batch": 4, "prefill": 2048, "canvas_length": 256}
        sizes = [workspace_bytes(real, **base | {name: value}) for value in values]
        assert all(a < b or name == "batch" and a <= b for a, b in pairwise(sizes))
    assert workspace_bytes(replace(real, vocab_size=2 * real.vocab_size), 4, 2048, 256) > 1.5 * GB


def test_float32_stores_no_logits_of_all_canvases(real):
    grown = workspace_bytes(real, 32, 256, 256, 4) - workspace_bytes(real, 8, 256, 256, 4)
    assert grown < 4 * 24 * 256 * 262_144 / 2, "less than half of the float32 logits of 24 canvases"


def test_workspace_constants_equal_those_of_the_kernels():
    pytest.importorskip("triton")
    from gesso.backends import torch as plain
    from gesso.backends.cuda.kernels import attention_tiles, rows, soft, vocab

    assert workspace.SOFT_SPLITS == soft.SPLITS and workspace.ROUTER_SPLITS == rows.SPLIT
    columns = [each.columns for each in (vocab.LOGITS, vocab.LOGITS_SMALL, vocab.LOGITS_LOW)]
    assert min(columns) == workspace.TILE_COLUMNS and max(columns) == workspace.PADDED_COLUMNS
    assert plain.CHUNK_BYTES == workspace.CHUNK_BYTES
    for dim in (64, 128, 256, 512):
        for tile in (
            attention_tiles.tiles(dim, torch.bfloat16, card, count) for card in CARDS.values() for count in (1, 256)
        ):
            assert tile.splits <= workspace.KEY_SPLITS[dim > 256]
