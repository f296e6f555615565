"""The memory of the 26B shape in int4."""

from dataclasses import replace

import pytest
import torch

import gesso
from gesso.memory.device import process_memory
from tests.gpu.device import BIG, DEVICE, DRY_RUN, DTYPE

pytestmark = pytest.mark.gpu


def test_int4_generates_up_to_8192_tokens_within_18_gb(record_property):
    """The limit includes the CUDA context and what the allocator reserves. The vision tower would add 1.15 GB."""
    model = gesso.load(BIG, device=DEVICE, dtype=DTYPE, quantize="int4", max_batch=1, text_only=True)
    if not DRY_RUN:
        torch.cuda.reset_peak_memory_stats()
    prompt = torch.randint(3, 4096, (8192 - 512,), generator=torch.Generator().manual_seed(0)).tolist()
    prompt = prompt[:100] if DRY_RUN else prompt
    request = model.request(prompt, max_new_tokens=512, steps=4, stopping="fixed", seed=1)
    (written,) = model.run([replace(request, eos=frozenset())])  # writes all 512 tokens
    assert len(written.tokens) == 512
    if DRY_RUN:
        return
    most = process_memory(DEVICE) - torch.cuda.memory_reserved() + torch.cuda.max_memory_reserved()
    used = torch.cuda.max_memory_allocated()
    record_property("in_use_GB", round(used / 1e9, 2))
    record_property("on_the_card_GB", round(most / 1e9, 2))
    assert used < 16.5e9 and most < 18e9
