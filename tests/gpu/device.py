"""The device of the GPU suite, and the name of the 26B shape.

`GESSO_GPU_DRY_RUN=1` runs the tests on a CPU with the 26B shape reduced to two narrow layers. This checks the logic of
the tests on a machine without a GPU, but no kernels, graphs or memory.
"""

import os

import torch

from gesso.checkpoint import random_weights

DRY_RUN = "GESSO_GPU_DRY_RUN" in os.environ
DEVICE = torch.device("cpu" if DRY_RUN else "cuda")
DTYPE = "float32" if DRY_RUN else "bfloat16"  # bfloat16 is slow on many CPUs
BIG = "random:26b-a4b"
EXPERTS = 8  # of the small checkpoints

if DRY_RUN:
    random_weights.SHAPES["26b-a4b"] = {
        "vocab_size": 16_384, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "global_head_dim": 64,
        "num_global_key_value_heads": 1, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 64,
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64,
        "max_position_embeddings": 16_384,
    }  # fmt: skip
