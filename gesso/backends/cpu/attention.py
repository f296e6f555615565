"""Attention of one token: keys and values are read where the cache has them.

`attend_with_cache` in `gesso/model/attention.py` is the specification. It copies what the token sees twice, which for a
long text takes longer than the products of a layer.

S = 1 token, N query heads, M key/value heads, D head dim, L capacity of the cache.
"""

import torch
from torch import Tensor

from gesso.backends.cpu import threads
from gesso.backends.cpu.kernels import attention as kernel
from gesso.model.attention import attend_with_cache
from gesso.model.cache import LayerKV

LANES = 16


def seen(cache: LayerKV, row: int, start: int) -> tuple[int, int, int]:
    """Return how many places of a row hold tokens, where the oldest is, and how many from there on are not seen.

    A ring holds more than the window. Its order does not matter: attention does not depend on it.
    """
    places = len(cache.k[row])
    count = min(start, places)
    unseen = 0 if cache.window is None else max(0, count - (cache.window - 1))
    return count, start % places if start >= places else 0, unseen


def attend(
    q_SND: Tensor,
    k_SMD: Tensor,
    v_SMD: Tensor,
    cache: LayerKV,
    row: int,
    start: int,
    causal: bool,
    block: bool = False,
) -> Tensor:
    """Do what `attend_with_cache` does: with a kernel for one token of text."""
    keys_LMD, values_LMD = cache.k[row], cache.v[row]
    length, heads, size = k_SMD.shape
    is_float = q_SND.dtype == keys_LMD.dtype == torch.float32
    if not causal or length != 1 or not is_float or size % (2 * LANES) or torch.is_grad_enabled():
        return attend_with_cache(q_SND, k_SMD, v_SMD, cache, row, start, causal, block)
    count, oldest, unseen = seen(cache, row, start)
    q_SND = q_SND.contiguous()
    k_SMD = k_SMD.contiguous()
    v_SMD = v_SMD.contiguous()
    out_SND = torch.empty_like(q_SND)
    queries = q_SND.shape[1]
    scores = torch.empty(queries, (count // LANES + 1) * LANES)
    threads.run(
        kernel.attend, q_SND.data_ptr(), k_SMD.data_ptr(), v_SMD.data_ptr(), keys_LMD.data_ptr(),
        values_LMD.data_ptr(), count, heads, queries // heads, size, out_SND.data_ptr(), scores.data_ptr(),
        oldest, unseen,
        threads=threads.count(heads),
    )  # fmt: skip
    cache.write(row, start, k_SMD, v_SMD)
    return out_SND
