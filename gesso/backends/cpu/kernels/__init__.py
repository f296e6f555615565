"""Kernels for a CPU, one file per operation, compiled by numba. Import these modules only where numba is installed.

The plain versions are in `gesso/model`, and `unpack` in `gesso/checkpoint/quantize` defines the formats.

In products, rows are rounded to 8 bits with one scale per 32 values. Then bytes are multiplied by bytes and summed as
integers, which is exact, and each group's sum is multiplied by the scales of weights and row. The sums of a row do not
depend on the other rows, to the last bit.

- `rounding`, `few_rows`, `many_rows`, `norm`, `attention`, `unpacking`: kernels of one operation. Each names its
  arguments where it reads them.
- `layers`: one token through all layers, in `stages`; `table` has its arguments, and `matrices`, `heads` and `routing`
  are parts of it. `vocabulary`: the prediction of the next token.
- `vectors`, `functions`, `tiles`: the operations they are made of; `dots`: the one that depends on the processor;
  `instructions`: their shared parts. `compiling`: how kernels are compiled.
"""
