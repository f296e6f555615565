"""Models with random weights in the shape of a real one, for measurements: `gesso.load("random:26b-a4b")`.

Weights are drawn, and packed if requested, on their device, matrix by matrix: nothing is downloaded or read. On a CPU,
where packing would take minutes, packed weights are drawn as random integers with one scale. The tokenizer is that of
the bundled model. The generated text is noise.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gesso import bundled
from gesso.checkpoint.parameters import assign, empty_model
from gesso.errors import CheckpointError
from gesso.files import read_json
from gesso.model.config import Config

if TYPE_CHECKING:
    import torch

    from gesso.checkpoint.quantize.formats import Format
    from gesso.checkpoint.quantize.packed import Packed, Weight
    from gesso.model.transformer import DiffusionGemma

PREFIX = "random:"
PUBLISHED_SHAPE = f"{PREFIX}26b-a4b"  # of google/diffusiongemma-26B-A4B-it

# The vision tower of google/diffusiongemma-26B-A4B-it.
TOWER: dict[str, Any] = {
    "model_type": "gemma4_vision", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 72, "patch_size": 16, "standardize": True,
}  # fmt: skip
# Changes to the text_config of the bundled model. 26b-a4b has the shape of google/diffusiongemma-26B-A4B-it.
SHAPES: dict[str, dict[str, Any]] = {
    "mini": {},
    "26b-a4b": {
        "vocab_size": 262_144, "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "global_head_dim": 512,
        "num_global_key_value_heads": 2, "sliding_window": 1024, "num_experts": 128, "top_k_experts": 8,
        "moe_intermediate_size": 704, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
        "max_position_embeddings": 262_144, "use_bidirectional_attention": "vision",
    },
}  # fmt: skip


def is_random(name: str | Path | None) -> bool:
    return isinstance(name, str) and name.startswith(PREFIX)


def config_of(shape: str, **changes: Any) -> Config:
    """Return the configuration of a shape. Tests pass `changes` to its text_config."""
    if shape not in SHAPES:
        raise CheckpointError(f"unknown shape {shape!r} of random weights; known are {', '.join(SHAPES)}")
    raw = read_json(bundled.directory() / "config.json")
    tower = {} if shape == "mini" else {"vision_config": TOWER}
    return Config.from_dict({**raw, **tower, "text_config": {**raw["text_config"], **SHAPES[shape], **changes}})


def make(
    config: Config,
    device: "torch.device",
    dtype: "torch.dtype",
    quantize: str | None = None,
    stream: Sequence[int] = (),
    seed: int = 0,
    *,
    on_cpu: bool = False,
) -> "DiffusionGemma":
    """Return a model with random weights. The experts of the layers in `stream` are in host memory.

    `on_cpu` chooses the formats of `format_of` for a CPU.
    """
    import torch

    from gesso.checkpoint import streamed
    from gesso.checkpoint.quantize.formats import clear, format_of

    model = empty_model(config if quantize is None else config.quantized(quantize, on_cpu))

    def format_for(name: str, shape: Sequence[int]) -> "Format | None":
        return None if quantize is None else format_of(name, shape, quantize, on_cpu)

    streamed.attach(model, stream, device, dtype, format_for)
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in list(model.named_parameters()):
        format = format_for(name, parameter.shape)
        # No variable keeps the weight: a streamed one leaves the device when it is assigned.
        if on_cpu and format is not None and format.draw is not None:
            assign(model, name, _packed(format, parameter.shape, dtype, generator))
        else:
            assign(model, name, _drawn(name, parameter.shape, format, dtype, len(config.layers), generator))
        clear(device, parameter.shape)
    return model.eval()


def _packed(format: "Format", shape: Sequence[int], dtype: "torch.dtype", generator: "torch.Generator") -> "Packed":
    """Return a weight drawn in a packed format."""
    assert format.draw is not None
    packed = format.packed(shape, format.draw(shape, generator))
    packed.dtype = dtype
    return packed


def _drawn(
    name: str,
    shape: Sequence[int],
    format: "Format | None",
    dtype: "torch.dtype",
    layers: int,
    generator: "torch.Generator",
) -> "Weight":
    """Return a weight drawn as in a new model, and packed if it has a format."""
    import torch

    from gesso.model.init import begin_one

    weight = torch.empty(shape, device=generator.device, dtype=dtype)
    begin_one(name, weight, layers, generator)
    if format is None:
        return weight
    packed = format.quantize(name, weight)
    packed.dtype = dtype
    return packed
