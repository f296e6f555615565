"""The 26B shape in bfloat16 fits in the memory that `gesso info` reports."""

from dataclasses import replace

import pytest
import torch

import gesso
from gesso.settings import Diffusion
from tests.gpu.device import BIG, DEVICE, DRY_RUN, DTYPE

pytestmark = pytest.mark.gpu


def test_bfloat16_fits_in_the_memory_that_info_reports(record_property):
    g = gesso.load(BIG, device=DEVICE, dtype=DTYPE)
    weights = sum(parameter.nbytes for parameter in g.model.parameters())
    if not DRY_RUN:
        assert torch.cuda.memory_allocated() < 1.005 * weights, "only weights are loaded; the allocator rounds up"
        torch.cuda.reset_peak_memory_stats()
    settings = replace(Diffusion(), canvas_length=256, steps=4, stopping="fixed")
    options = {"max_new_tokens": 512, "preset": settings, "seed": 1}
    request = replace(g.request(list(range(3, 2003)), **options), eos=frozenset())  # writes all 512 tokens
    answer, again = (g.run([request])[0] for _ in range(2))
    assert len(answer.tokens) == 512 and answer.tokens == again.tokens
    if DRY_RUN:
        return
    peak, cache = torch.cuda.max_memory_allocated(), g.engine.cache.nbytes
    record_property("weights_GB", round(weights / 1e9, 2))
    record_property("peak_GB", round(peak / 1e9, 2))
    assert round(weights / 1e9, 2) == 51.65  # 50.50 of the text model, 1.15 of the vision tower
    assert peak < weights + cache + 3e9
