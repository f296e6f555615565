"""Memory: the bytes that weights, KV cache and workspace take, and what fits a device.

- `weights`: the counter of weight bytes, for a loaded model and for one that is only described.
- `sequences`: bytes of KV cache. `workspace`: an upper bound of the other bytes of a pass.
- `device`: the memory of this machine's devices, and of this process. `allocator`: settings of torch's allocator.
- `budget`: the bound. It adds these up, and finds precisions, batches and contexts that fit.
- `units`: bytes as text.

`gesso info`, `gesso.load`, `gesso serve` and `gesso train` all use this package.
"""
