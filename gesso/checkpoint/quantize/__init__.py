"""Quantized weights in the layouts of compressed-tensors.

- `fp8`, `int4`, `nvfp4`: one file per format, with its exact layout at the top. `matrices`: their shared parts.
- `uint4`: the same for experts from files of other tools. `int8`: the same for matrices on a CPU.
- `packed`: a quantized matrix in place of a parameter.
- `formats`: which tensors each format applies to, and their names in a file.
- `convert`: `gesso quantize`, from one directory to another. `export_compressed_tensors`: the same for other programs.
- `repack`: from the formats of other tools to those of the kernels. `codes`: values of a few bits in bytes.
"""
