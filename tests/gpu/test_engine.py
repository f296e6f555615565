"""The engine on a GPU with the tiny model: the same text alone, in a batch, resumed, and on a CPU."""

from dataclasses import replace

import pytest
import torch

import gesso
from gesso.backends.cuda import packed
from gesso.diffusion.noise import HashSource
from gesso.engine.engine import Engine
from tests.engine_requests import finish, other_requests, request, result
from tests.gpu.device import DEVICE

pytestmark = pytest.mark.gpu


def test_random_numbers_equal_those_of_the_cpu():
    for seed in (0, 7, 2**63 + 5):
        cpu, gpu = (HashSource().at(seed, 3, 9, device) for device in (torch.device("cpu"), DEVICE))
        assert torch.equal(cpu.tokens(256, 262_144), gpu.tokens(256, 262_144).cpu())
        assert torch.equal(cpu.uniform(256), gpu.uniform(256).cpu())
        assert torch.equal(cpu.keys(256), gpu.keys(256).cpu())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_same_seed_same_text_alone_in_a_batch_of_eight_and_resumed(tiny_directory, dtype):
    model = gesso.load(tiny_directory, device=DEVICE, dtype=dtype)
    for seed in range(3):
        alone = finish(engine := Engine(model.model, model.decode), engine.submit(request(seed=seed)))[0]
        tokens = alone[-1].result.tokens
        batch = Engine(model.model, model.decode, max_batch=8)
        others = [batch.submit(other) for other in other_requests()]
        mine = batch.submit(request(seed=seed))
        assert finish(batch, mine, *others)[0][-1].result.tokens == tokens
        for draft in (alone[1], alone[9]):
            if draft.kind == "draft" and draft.canvas.reason is None:
                again = request(seed=seed, resume=draft)
                assert result(Engine(model.model, model.decode), again).tokens == tokens


@pytest.mark.parametrize("stopping", ["stable", "fixed"])
def test_step_kernels_write_the_text_of_the_plain_step(tiny_directory, monkeypatch, stopping):
    """With pins, alone and beside another canvas."""
    model = gesso.load(tiny_directory, device=DEVICE, dtype="bfloat16")
    texts = []
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(packed, "takes_step", lambda request: False)  # no setting leaves the kernels out
        engine = Engine(model.model, model.decode, max_batch=2)
        diffusion = replace(request().diffusion, stopping=stopping)
        made = [request(seed=seed, pins={3: 9}, diffusion=diffusion) for seed in range(4)]
        texts.append([result(engine, each).tokens for each in made])
        both = [engine.submit(each) for each in made[:2]]
        texts[-1].append([events[-1].result.tokens for events in finish(engine, *both)])
    assert texts[0] == texts[1] and texts[0][0] != texts[0][1]


def test_graphs_are_captured_again_after_all_were_dropped(tiny_directory):
    """The memory pool is freed with the last graph."""
    model = gesso.load(tiny_directory, device=DEVICE, dtype="bfloat16")
    engine = Engine(model.model, model.decode)
    texts = []
    for _ in range(2):
        for length in (1, 30, 60):
            texts.append([result(engine, request(seed=1, prompt=tuple(range(3, 3 + length)))).tokens for _ in range(3)])
        engine.runner.free_memory()
    assert all(text == same[0] for same in texts for text in same) and texts[:3] == texts[3:]


def test_a_float32_model_denoises_under_autocast_without_gradients(tiny_directory):
    """The trainer does this for self-conditioning."""
    model = gesso.load(tiny_directory, device=DEVICE, dtype="float32").model
    ids_BS = torch.arange(20, device=DEVICE).view(2, 10)
    with torch.no_grad():
        cache = model.new_cache(2, 64)
        model.encode(ids_BS, cache)
        expected = model.denoise(ids_BS, cache)
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            found = model.denoise(ids_BS, cache)
    assert found.isfinite().all() and (found - expected).norm() < 0.1 * expected.norm()


def test_float32_text_equals_that_of_the_cpu(tiny_directory):
    texts = []
    for device in ("cpu", DEVICE):
        model = gesso.load(tiny_directory, device=device, dtype="float32")
        with torch.no_grad():
            for name, weight in model.model.named_parameters():
                if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
                    weight.mul_(0.15)  # rounding errors do not grow from step to step
        texts.append([result(Engine(model.model, model.decode), request(seed=seed)).tokens for seed in range(8)])
    assert texts[0] == texts[1]
