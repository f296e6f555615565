"""Requests for measurements."""

import secrets
from dataclasses import replace
from typing import Any

import torch

from gesso.engine.request import Request


def requests(g: Any, size: int, prompt: int, new: int, *, same: bool = False, **options: Any) -> list[Request]:
    """Return requests with random prompts and without end-of-text tokens.

    The prompts are new ones, which are not in the cache, or the `same` in every call.
    """
    seed = 0 if same else secrets.randbits(32)
    generator = torch.Generator().manual_seed(seed)
    texts = torch.randint(3, g.config.vocab_size, (size, prompt), generator=generator).tolist()
    made = [g.request(text, max_new_tokens=new, seed=i, **options) for i, text in enumerate(texts)]
    return [replace(request, eos=frozenset(), never_first=frozenset()) for request in made]
