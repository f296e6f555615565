"""Checkpoints: find, read, load, write and quantize them.

- `find`: from a name to a path. `source`: a checkpoint as a whole. `load`: its model. `write`: save one that
  `transformers` loads.
- `stored`: tensors in files, and recipes that make parameters from them. `transfer` moves their bytes to a device.
- `huggingface`: recipes of the native layout. `safetensors`: headers of its files. `parameters`: names and shapes.
- `compressed_tensors`, `modelopt`, `mlx`, `gguf`: recipes of the layouts of other tools. `linears`: experts that a file
  stores one by one.
- `hub`: find a model of the hub, or download it. `download`: one file of it. `cache`: the names and the layout.
- `local`: list and remove models. `aliases`: short names, and the checkpoint for a device.
- `random_weights`: models with random weights, for measurements.
- `vision`: names and shapes of the vision tower, which gesso keeps but never runs.
- `quantize`: FP8 and four-bit formats.
"""
