"""Triton kernels, one file per operation. The plain versions are in `gesso/model`, `gesso/backends/torch.py`,
`gesso/diffusion/hash.py` and `gesso/backends/cuda/reference.py`. Import these modules only where Triton is installed.
"""
