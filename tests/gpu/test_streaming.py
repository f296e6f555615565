"""Streamed experts on a GPU: the same numbers and texts as with all experts on it, in eager and captured passes."""

import gc
from dataclasses import replace

import pytest
import torch

import gesso
from gesso import Done
from gesso.backends import for_model
from gesso.backends.base import Piece
from gesso.checkpoint import random_weights
from gesso.checkpoint.streamed import streamed
from gesso.engine.engine import Engine
from gesso.engine.request import Request
from gesso.memory.workspace import CONTEXT_BYTES
from gesso.settings import Diffusion
from tests.gpu.device import BIG, DEVICE, DRY_RUN

pytestmark = pytest.mark.gpu

SHAPE = {
    "vocab_size": 512, "hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 7, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 64, "global_head_dim": 128, "num_global_key_value_heads": 1,
    "num_experts": 16, "top_k_experts": 2, "moe_intermediate_size": 128, "sliding_window": 64,
    "layer_types": ["sliding_attention"] * 6 + ["full_attention"],
}  # fmt: skip
STREAMED = () if DRY_RUN else (0, 1, 3, 4, 6)  # the plain model of a dry run cannot stream
FORMATS = [None, "fp8", "int4", "nvfp4"]


def make(format, layers=STREAMED):
    dtype = torch.float32 if DRY_RUN else torch.bfloat16
    return random_weights.make(random_weights.config_of("mini", **SHAPE), DEVICE, dtype, format, layers)


@torch.no_grad()
@pytest.mark.parametrize("format", FORMATS)
def test_eager_passes_have_the_bits_of_resident_experts(format):
    found = []
    for model in (make(format, ()), make(format)):
        backend, cache = for_model(model), model.new_cache(1, 512)
        ids_S, canvas_C = (torch.arange(n, device=DEVICE) * 7 % 512 for n in (100, 64))
        for _ in range(3):  # copies of a pass follow those of the last one
            pieces = [Piece(0, ids_S, causal=True), Piece(0, canvas_C, causal=False)]
            found.append([part.cpu() for part in backend.run(pieces, cache)])
    expected, streaming = found[:3], found[3:]
    for one, other in zip(expected, streaming, strict=True):
        assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("format", FORMATS)
def test_captured_passes_write_the_text_of_resident_experts(format):
    texts = []
    for model in (make(format, ()), make(format)):
        engine = Engine(model, lambda tokens: "", max_batch=2)
        for seed in (1, 2, 1, 2):  # eager, captured, replayed
            diffusion = Diffusion(steps=6, stopping="fixed", canvas_length=32)
            engine.submit(Request(prompt=(5, 6, 7) * 9, max_new_tokens=96, diffusion=diffusion, seed=seed))
            if seed == 2:
                texts.append([event.result.tokens for event in run(engine) if isinstance(event, Done)])
        if not DRY_RUN:
            assert engine.runner.backend.graphs.packed
    assert texts[0] == texts[1] == texts[2] == texts[3] and len(texts[0]) == 2


def run(engine):
    while engine.busy:
        yield from engine.step()


def test_the_26b_within_12_gb_writes_the_text_that_it_writes_without_a_limit(record_property):
    prompt = torch.randint(3, 4096, (100 if DRY_RUN else 1000,), generator=torch.Generator().manual_seed(0)).tolist()
    texts = []
    for memory in (0.9, 0.9 if DRY_RUN else "12GB"):  # a limit lasts as long as the process, so it comes last
        model = gesso.load(BIG, device=DEVICE, quantize="int4", max_batch=1, max_length=8192, memory=memory)
        if not DRY_RUN:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        request = model.request(prompt, max_new_tokens=512, steps=4, stopping="fixed", seed=1)
        (written,) = model.run([replace(request, eos=frozenset())])
        texts.append(written.tokens)
        if not DRY_RUN:
            assert (streamed(model.model) is not None) == (memory == "12GB")
        if memory == 0.9 and not DRY_RUN:
            del model, request
            gc.collect()
            torch.cuda.empty_cache()
    assert texts[0] == texts[1] and len(texts[0]) == 512
    if DRY_RUN:
        return
    held, peak = streamed(model.model), torch.cuda.max_memory_reserved() + CONTEXT_BYTES
    record_property("streamed_layers", len(held.layers))
    record_property("peak_GB", round(peak / 1e9, 2))
    assert peak <= 12e9
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(8 * 10**9, dtype=torch.uint8, device=DEVICE)
