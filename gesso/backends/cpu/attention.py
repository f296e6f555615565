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


def attend(q_SND: Tensor, k_SMD: Tensor, v_SMD: Tensor, cache: LayerKV, row: int, start: int, causal: bool) -> Tensor:
    """Do what `attend_with_cache` does: with a kernel for one token of text."""
    keys_LMD, values_LMD = cache.k[row], cache.v[row]
    length, heads, size = k_SMD.shape
    is_float = q_SND.dtype == keys_LMD.dtype == torch.float32
    if not causal or length != 1 or not is_float or size % (2 * LANES) or torch.is_grad_enabled():
        return attend_with_cache(q_SND, k_SMD, v_SMD, cache, row, start, causal)
    # A ring holds what the token sees, in any order: attention does not depend on it.
    count = start if cache.window is None else min(start, cache.window - 1)
    q_SND, k_SMD, v_SMD = q_SND.contiguous(), k_SMD.contiguous(), v_SMD.contiguous()
    out_SND, queries = torch.empty_like(q_SND), q_SND.shape[1]
    scores = torch.empty(queries, (count // LANES + 1) * LANES)
    threads.run(
        kernel.attend, q_SND.data_ptr(), k_SMD.data_ptr(), v_SMD.data_ptr(), keys_LMD.data_ptr(),
        values_LMD.data_ptr(), count, heads, queries // heads, size, out_SND.data_ptr(), scores.data_ptr(),
        threads=threads.count(heads),
    )  # fmt: skip
    cache.write(row, start, k_SMD, v_SMD)
    return out_SND
