"""Checkpoints of random weights in the shape of the 26B, in the layouts of other tools.

Codes are random bytes, and scales are constants that give the weights a standard deviation near 0.02. So a checkpoint
is written as fast as random numbers are drawn, and reading it does what reading a real one does. Dense matrices and
tables are those that the published checkpoints leave in bfloat16.

E experts, O out, I in.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gesso import bundled
from gesso.checkpoint.gguf import write as gguf
from gesso.checkpoint.gguf.choose import choose
from gesso.checkpoint.gguf.keys import global_shape, keys
from gesso.checkpoint.gguf.names import ROPE_FREQUENCIES, names
from gesso.checkpoint.gguf.types import TYPES
from gesso.checkpoint.parameters import parameters
from gesso.checkpoint.random_weights import SHAPES
from gesso.checkpoint.write import write_shards
from gesso.files import read_json
from gesso.model.config import Config
from gesso.model.quantization_config import quantization_config

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STD = 0.02
# Changes to the shape that keep everything but its size: for tests.
SMALL = {
    "vocab_size": 16_384, "hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128, "global_head_dim": 256,
    "num_global_key_value_heads": 1, "num_experts": 20, "top_k_experts": 2, "moe_intermediate_size": 128,
    "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64, "max_position_embeddings": 4096,
}  # fmt: skip
Tensors = Iterator[tuple[str, Tensor]]


def shape_config(**changes: Any) -> dict[str, Any]:
    """Return the config.json of the 26B shape."""
    raw = read_json(bundled.directory() / "config.json")
    return {**raw, "text_config": {**raw["text_config"], **SHAPES["26b-a4b"], **changes}}


def write(layout: str, directory: Path, raw: Mapping[str, Any]) -> None:
    """Write a checkpoint with the configuration `raw`: a directory, or a GGUF file."""
    if layout == "gguf":
        write_gguf(directory, raw)
        return
    directory.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        if (file := bundled.directory() / name).exists():
            shutil.copyfile(file, directory / name)
    settings, matrix = LAYOUTS[layout]
    (directory / "config.json").write_text(json.dumps({**raw, **settings}))
    config = Config.from_dict(raw)
    write_shards(_tensors(config, matrix), directory, shard_bytes=5 * 10**9)


# Bytes of each block that are float16 scales, and values for them that give the weights their standard deviation.
_SCALES = {
    "Q4_K": {0: STD / 160, 2: STD / 21}, "Q5_0": {0: STD / 9}, "Q6_K": {208: STD / 1300}, "Q8_0": {0: STD / 74},
}  # fmt: skip


def write_gguf(path: Path, raw: Mapping[str, Any]) -> None:
    """Write a GGUF file with the mixture of types of Q4_K_M."""
    config = Config.from_dict(raw)
    shapes = {names(name)[0]: shape for name, shape in parameters(config).items()}
    shapes[ROPE_FREQUENCIES] = (global_shape(config).head_dim // 2,)
    types = choose(shapes, "q4_k_m")
    offsets, size = gguf.places(shapes, types)
    header = gguf.header_of(keys(config, bundled.directory(), "q4_k_m", path.stem), shapes, types, offsets)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)
        for name, shape in shapes.items():
            file.seek(len(header) + offsets[name])
            if name == ROPE_FREQUENCIES:
                file.write(gguf.rope_factors(config).numpy().data)
            elif types[name] == "F32":
                values = torch.ones(shape) if len(shape) == 1 else STD * torch.randn(shape)
                file.write(values.numpy().data)
            else:
                file.write(_blocks(types[name], shape).numpy().data)


def _blocks(type: str, shape: tuple[int, ...]) -> Tensor:
    """Return random blocks with given scales."""
    block = TYPES[type]
    raw = torch.randint(0, 256, (math.prod(shape) // block.values, block.bytes), dtype=torch.uint8, device=DEVICE)
    for start, scale in _SCALES[type].items():
        raw[:, start : start + 2] = torch.tensor([scale], dtype=torch.float16).view(torch.uint8).to(DEVICE)
    return raw.cpu()


def _tensors(config: Config, matrix: Callable[[str, int, int], dict[str, Tensor]]) -> Tensors:
    for name, shape in parameters(config).items():
        if len(shape) == 1:
            yield name, torch.ones(shape, dtype=torch.bfloat16)
        elif len(shape) == 3:
            yield from _experts(name, shape, matrix)
        else:
            yield from matrix(name, *shape).items()


def _experts(name: str, shape: tuple[int, ...], matrix: Callable[[str, int, int], dict[str, Tensor]]) -> Tensors:
    """Yield the matrices of each expert, or all at once where the layout of MLX has them."""
    experts, out, width = shape
    if matrix is _mlx:
        each = _mlx(f"{name}.weight", experts * out, width)
        yield from ((part, tensor.unflatten(0, (experts, out))) for part, tensor in each.items())
        return
    path, _, kind = name.rpartition(".")
    halves = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
    for expert in range(experts):
        for half in halves:
            yield from matrix(f"{path}.{expert}.{half}.weight", out // len(halves), width).items()


def _bytes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE).cpu()


def _full(name: str, out: int, width: int) -> dict[str, Tensor]:
    return {name: (STD * torch.randn(out, width, device=DEVICE)).to(torch.bfloat16).cpu()}


def _is_layer_matrix(name: str) -> bool:
    return ".layers." in name and ".router." not in name


def _fp8(name: str, out: int, width: int) -> dict[str, Tensor]:
    """Return a matrix as compressed-tensors has it in RedHatAI's FP8-dynamic: attention, MLP and experts in FP8."""
    if not _is_layer_matrix(name):
        return _full(name, out, width)
    codes = (torch.randn(out, width, device=DEVICE) * 100).clamp_(-448, 448).to(torch.float8_e4m3fn).cpu()
    return {name: codes, f"{name}_scale": torch.full((out, 1), STD / 100, dtype=torch.bfloat16)}


def _nvfp4(name: str, out: int, width: int) -> dict[str, Tensor]:
    """Return a matrix as NVIDIA's ModelOpt checkpoint has it: only experts in NVFP4."""
    if ".experts." not in name:
        return _full(name, out, width)
    return {
        name: _bytes(out, width // 2),
        f"{name}_scale": torch.full((out, width // 16), 100.0).to(torch.float8_e4m3fn),
        f"{name}_scale_2": torch.tensor(STD / 300),
        f"{name.removesuffix('weight')}input_scale": torch.tensor(1.0),
    }


def _mlx(name: str, out: int, width: int) -> dict[str, Tensor]:
    """Return a matrix as mlx-community's 4bit has it: dense MLP and router at 8 bits, everything else at 4."""
    bits = 8 if ".mlp." in name or ".router." in name else 4
    path, levels = name.removesuffix(".weight"), 2**bits - 1
    scale = torch.full((out, width // 64), STD * 12**0.5 / levels, dtype=torch.bfloat16)
    return {
        name: _bytes(out, width * bits // 8).view(torch.uint32),
        f"{path}.scales": scale,
        f"{path}.biases": -scale * levels / 2,
    }


def _mlx_settings() -> dict[str, Any]:
    eight = {"group_size": 64, "bits": 8}
    layers = SHAPES["26b-a4b"]["num_hidden_layers"]
    modules = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "router.proj")
    overrides = {f"model.decoder.layers.{i}.{module}": eight for i in range(layers) for module in modules}
    return {"quantization": {"group_size": 64, "bits": 4, "mode": "affine", **overrides}}


_NVFP4_SETTINGS = {
    "quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt", "version": "0.47.0"},
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
}  # fmt: skip
LAYOUTS: dict[str, tuple[dict[str, Any], Callable[[str, int, int], dict[str, Tensor]]]] = {
    "compressed-tensors": ({"quantization_config": quantization_config("fp8-layers")}, _fp8),
    "modelopt": ({"quantization_config": _NVFP4_SETTINGS}, _nvfp4),
    "mlx": (_mlx_settings(), _mlx),
}
