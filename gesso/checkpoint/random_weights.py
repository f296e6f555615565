"""Models with random weights in the shape of a real one, to measure with: `gesso.load("random:26b-a4b")`.

They are made on their device, matrix by matrix, and packed there when asked: nothing is downloaded or read. Their text
is noise, in the pieces of the model in the box, whose tokenizer they borrow.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gesso import bundled as box
from gesso.checkpoint import huggingface as checkpoint
from gesso.errors import CheckpointError
from gesso.files import read_json
from gesso.model.config import Config

if TYPE_CHECKING:
    import torch

    from gesso.checkpoint.quantize.packed import Weight
    from gesso.model.transformer import DiffusionGemma

PREFIX = "random:"

# What a text_config has other than that of the model in the box. The 26B-A4B is google/diffusiongemma-26B-A4B-it's.
SHAPES: dict[str, dict[str, Any]] = {
    "mini": {},
    "26b-a4b": {
        "vocab_size": 262_144, "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "global_head_dim": 512,
        "num_global_key_value_heads": 2, "sliding_window": 1024, "num_experts": 128, "top_k_experts": 8,
        "moe_intermediate_size": 704, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
        "max_position_embeddings": 262_144,
    },
}  # fmt: skip


def is_random(name: str | Path | None) -> bool:
    return isinstance(name, str) and name.startswith(PREFIX)


def config_of(shape: str, **changes: Any) -> Config:
    """The configuration of a shape; `changes` to its text_config are for tests."""
    if shape not in SHAPES:
        raise CheckpointError(f"unknown shape {shape!r} of random weights; known are {', '.join(SHAPES)}")
    raw = read_json(box.directory() / "config.json")
    return Config.from_dict({**raw, "text_config": {**raw["text_config"], **SHAPES[shape], **changes}})


def locate(name: str | Path | None) -> tuple[Path, Config]:
    """Return the directory and the configuration of a checkpoint; a random shape borrows the bundled directory."""
    if isinstance(name, str) and is_random(name):
        return box.directory(), config_of(name.removeprefix(PREFIX))
    directory = checkpoint.find(name)
    return directory, Config.from_directory(directory)


def make(
    config: Config, device: "torch.device", dtype: "torch.dtype", quantize: str | None = None, seed: int = 0
) -> "DiffusionGemma":
    import torch

    from gesso.checkpoint.quantize.formats import clear, format_of
    from gesso.model.init import begin_one

    model = checkpoint.empty_model(config if quantize is None else config.quantized(quantize))
    generator = torch.Generator(device).manual_seed(seed)

    def drawn(name: str, shape: Sequence[int]) -> "Weight":
        weight = torch.empty(shape, device=device, dtype=dtype)
        begin_one(name, weight, len(config.layers), generator)
        format = None if quantize is None else format_of(name, shape, quantize)
        if format is None:
            return weight
        packed = format.quantize(name, weight)
        packed.dtype = dtype
        return packed

    for name, parameter in list(model.named_parameters()):
        checkpoint.assign(model, name, drawn(name, parameter.shape))
        clear(device, parameter.shape)
    return model.eval()
