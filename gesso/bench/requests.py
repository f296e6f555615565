"""Requests for measurements."""

import time
from dataclasses import replace
from typing import Any

import torch

from gesso.engine.request import Request


def requests(g: Any, size: int, prompt: int, new: int, **options: Any) -> list[Request]:
    """Return requests with random prompts, which are not in the cache, and without end-of-text tokens."""
    generator = torch.Generator().manual_seed(int.from_bytes(time.time_ns().to_bytes(8, "big")[-4:], "big"))
    texts = torch.randint(3, g.config.vocab_size, (size, prompt), generator=generator).tolist()
    made = [g.request(text, max_new_tokens=new, seed=i, **options) for i, text in enumerate(texts)]
    return [replace(request, eos=frozenset(), never_first=frozenset()) for request in made]
