"""The workspace bound: close to measured memory, with the constants of the kernels."""

import weakref
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from gesso.cards.named import CARDS
from gesso.engine import seen
from gesso.memory import workspace
from gesso.memory.budget import Budget
from gesso.memory.workspace import CONTEXT_BYTES, workspace_bytes
from gesso.model.config import Config
from gesso.model.vision import Vision
from tests.info.test_info import REAL, write

GB = 10**9


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return Config.from_directory(write(tmp_path_factory.mktemp("real"), REAL))


@pytest.mark.parametrize(("batch", "measured"), [(8, 2.95), (32, 10.06)])
def test_workspace_bound_is_between_measured_memory_and_1_5_times_that(real, batch, measured):
    """Measured on an H200 at the 26B shape in fp8: reserved after batches of many sizes, without the CUDA context."""
    bound = workspace_bytes(real, batch, 2048, 256) - CONTEXT_BYTES
    assert measured * GB <= bound <= 1.5 * measured * GB


def test_workspace_bound_covers_the_vocabulary_kernels(real):
    for batch in (8, 16, 32):
        tokens = 256 * batch
        stored, tiles = 2 * tokens * 262_144, 4 * 4 * tokens * 2048
        partial, soft = 4 * 6 * tokens * 2816, 2 * tokens * 2816
        assert workspace_bytes(real, batch, 0, 256) >= CONTEXT_BYTES + stored + tiles + partial + soft


def test_workspace_bound_covers_one_request_with_all_logits(real):
    logits = 4 * 256 * 262_144
    for batch in (1, 2, 8):
        assert workspace_bytes(real, batch, 2048, 256) - CONTEXT_BYTES >= 5 * logits


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that are made within, as long as they live, without those of a module."""

    def __init__(self, module):
        super().__init__()
        self.sizes = {parameter.untyped_storage()._cdata: 0 for parameter in module.parameters()}
        self.peak = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        found = operation(*args, **(kwargs or {}))
        for storage in (tensor.untyped_storage() for tensor in tree_iter(found)):
            if (key := storage._cdata) not in self.sizes:
                self.sizes[key] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, key)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return found


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_workspace_bound_covers_the_vision_pass_of_the_largest_image(real, monkeypatch, dtype):
    """On the meta device, where nothing is computed, at the real size. Attention makes no matrix of all scores."""
    layers = replace(real.vision, num_hidden_layers=2)
    with torch.device("meta"):
        vision, pixels_PI = Vision(layers, real.hidden_size).to(dtype), torch.empty(84 * 120, 768, dtype=torch.uint8)
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
