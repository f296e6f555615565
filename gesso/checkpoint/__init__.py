"""Checkpoints in the Hugging Face layout.

- `huggingface`: find, check and load a directory. `write`: save one that `transformers` loads.
- `random_weights`: models with random weights, for measurements.
- `vision`: names and shapes of the vision tower, which gesso keeps but never runs.
- `quantize`: FP8 and four-bit formats.
"""
