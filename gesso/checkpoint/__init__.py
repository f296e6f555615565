"""Checkpoints in the Hugging Face layout.

- `huggingface`: find, check and load a directory. `write`: save one that `transformers` loads.
- `hub`: find a model of the hub, or download it. `transfer`: one file of it. `cache`: the names and the layout.
- `local`: list and remove models. `aliases`: short names, and the checkpoint for a device.
- `random_weights`: models with random weights, for measurements.
- `vision`: names and shapes of the vision tower, which gesso keeps but never runs.
- `quantize`: FP8 and four-bit formats.
"""
