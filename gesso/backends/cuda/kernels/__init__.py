"""Triton kernels, one file an operation, each beside its plain version in `gesso/ops`. Imported on a GPU only."""
