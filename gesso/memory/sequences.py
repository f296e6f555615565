"""Bytes of KV cache, counted on the meta device by the cache that the engine uses."""

from functools import lru_cache

from gesso.model.config import Config

# A search for the longest context asks for the same few lengths for every precision and every card.


@lru_cache(maxsize=4096)
def cache_bytes(config: Config, context: int) -> int:
    """Return the bytes of the KV cache of one sequence in bf16."""
    import torch

    from gesso.model.cache import KVCache

    return KVCache(config, 1, context, torch.device("meta"), torch.bfloat16).nbytes


@lru_cache(maxsize=4096)
def sequence_bytes(config: Config, context: int, value_bytes: int = 2) -> int:
    """Return the bytes of one sequence in the engine: its KV cache, and the copy of its sliding-window rings."""
    import torch

    from gesso.model.cache import KVCache

    cache = KVCache(config, 1, context, torch.device("meta"), torch.bfloat16)
    cache.save(0, 0)
    return cache.nbytes * value_bytes // 2
