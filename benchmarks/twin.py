"""A GGUF file with random weights in the shape of the model's autoregressive twin, for measurements of llama.cpp.

The twin, Gemma 4 26B-A4B, has the same layers; it lacks self-conditioning and the scalars of the encoder. All matrices
are Q4_0: four bits and one scale per 32 values, as in our int4. There is no vocabulary, only its size.
"""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import BinaryIO

import torch

from gesso.checkpoint.gguf.keys import global_shape, integer_value, model_keys, string_value
from gesso.checkpoint.gguf.names import ROPE_FREQUENCIES, names
from gesso.checkpoint.gguf.types import TYPES, row_bytes
from gesso.checkpoint.gguf.write import header_of, places, rope_factors
from gesso.checkpoint.parameters import parameters
from gesso.model.config import Config

ARCHITECTURE = "gemma4"
BLOCKS = 2**20  # random blocks, which all matrices repeat
SCALE = 0.01


def write_twin(target: Path, config: Config) -> None:
    shapes = _shapes(config)
    types = {name: "Q4_0" if len(shape) > 1 and "ffn_gate_inp" not in name else "F32" for name, shape in shapes.items()}
    model = {key: value for key, value in model_keys(config).items() if key != "attention.causal"}
    metadata = {
        "general.architecture": string_value(ARCHITECTURE),
        "general.file_type": integer_value(2),  # mostly Q4_0
        "general.quantization_version": integer_value(2),
        "tokenizer.ggml.model": string_value("no_vocab"),
        f"{ARCHITECTURE}.vocab_size": integer_value(config.vocab_size),
        **{f"{ARCHITECTURE}.{key}": value for key, value in model.items()},
    }
    offsets, size = places(shapes, types)
    head = header_of(metadata, shapes, types, offsets)
    blocks = _random_blocks()
    with target.open("wb") as file:
        file.write(head)
        for name, shape in shapes.items():
            file.seek(len(head) + offsets[name])
            if name == ROPE_FREQUENCIES:
                file.write(rope_factors(config).numpy().tobytes())
            elif types[name] == "F32":
                file.write(torch.ones(shape).numpy().tobytes())
            else:
                _repeat(file, blocks, prod(shape[:-1]) * row_bytes(TYPES["Q4_0"], shape[-1]))
        file.truncate(len(head) + size)


def _shapes(config: Config) -> dict[str, Sequence[int]]:
    own = {
        names(name)[0]: shape
        for name, shape in parameters(config).items()
        if "self_conditioning" not in name and "encoder" not in name
    }
    return {**own, ROPE_FREQUENCIES: (global_shape(config).head_dim // 2,)}


def _random_blocks() -> bytes:
    """Return blocks of Q4_0: a scale in float16, then 16 bytes of two codes each."""
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(256, (BLOCKS, TYPES["Q4_0"].bytes), dtype=torch.uint8, generator=generator)
    blocks[:, :2] = torch.tensor([SCALE], dtype=torch.float16).view(torch.uint8)
    return blocks.numpy().tobytes()


def _repeat(file: BinaryIO, data: bytes, size: int) -> None:
    for start in range(0, size, len(data)):
        file.write(data[: min(len(data), size - start)])
