"""Write a GGUF file from the tensors of a checkpoint.

Types and sizes follow from the configuration, so the header is written first. Then each tensor is rounded, and written
at its place as it arrives: memory for one tensor is enough. The file appears complete or not at all. The vision tower
is left out, as by llama.cpp's converter.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gesso.checkpoint.gguf import blocks
from gesso.checkpoint.gguf.choose import choose
from gesso.checkpoint.gguf.file import ALIGNMENT, MAGIC
from gesso.checkpoint.gguf.keys import global_shape, keys, text
from gesso.checkpoint.gguf.metadata import STILL
from gesso.checkpoint.gguf.names import ROPE_FREQUENCIES, names
from gesso.checkpoint.gguf.quantize import pack
from gesso.checkpoint.gguf.types import FLOATS, TYPES, row_bytes
from gesso.checkpoint.parameters import parameters
from gesso.checkpoint.quantize.convert import relative_error
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.write import alone
from gesso.errors import CheckpointError, InputError
from gesso.files import replacing
from gesso.model.config import Config


def check_target(target: Path) -> None:
    if target.suffix != ".gguf":
        raise InputError(f"the name of a GGUF file ends in .gguf, got {target.name!r}")
    if target.exists():
        raise InputError(f"{target} exists; choose another name")


def write(
    target: Path, config: Config, directory: Path, tensors: Iterable[tuple[str, Tensor]], to: str
) -> dict[str, float]:
    """Write a model and return the relative error of each matrix that is rounded.

    `directory` has its tokenizer and generation settings. `tensors` come in any order, by their names in a Hugging Face
    checkpoint; others than the parameters of the text model are left out.
    """
    check_target(target)
    if not config.tie_word_embeddings:
        raise InputError("a GGUF file cannot hold a model whose encoder and head have weights of their own")
    stored = {name: names(name)[0] for name in parameters(config)}
    shapes = {stored[name]: shape for name, shape in parameters(config).items()}
    shapes[ROPE_FREQUENCIES] = (global_shape(config).head_dim // 2,)
    types = choose(shapes, to)
    offsets, size = places(shapes, types)
    header = header_of(keys(config, directory, to, target.stem), shapes, types, offsets)
    missing, errors = set(stored), {}
    with alone(target), replacing(target) as file:
        file.write(header)
        file.seek(len(header) + offsets[ROPE_FREQUENCIES])
        file.write(rope_factors(config).numpy().data)
        for name, tensor in tensors:
            if name not in stored:
                continue
            type = types[stored[name]]
            raw = _packed(name, type, tensor)
            file.seek(len(header) + offsets[stored[name]])
            file.write(raw.numpy().data)
            if type not in FLOATS:
                packed = Packed(type, tuple(tensor.shape), {"blocks": raw}, partial(_unpack, type))
                errors[name] = relative_error(tensor, packed)
            missing.discard(name)
        if missing:
            raise CheckpointError(f"the checkpoint lacks tensor {min(missing)} and {len(missing) - 1} more")
        file.truncate(len(header) + size)
    return errors


def _packed(name: str, type: str, tensor: Tensor) -> Tensor:
    try:
        return pack(type, tensor.cpu())
    except InputError as error:
        raise InputError(f"tensor {name} cannot be stored as {type}: {error}") from None


def _unpack(type: str, tensors: Mapping[str, Tensor]) -> Tensor:
    return blocks.unpack(type, tensors["blocks"])


def rope_factors(config: Config) -> Tensor:
    """Return the factors that divide the angles of global layers: 1 for pairs that rotate."""
    shape = global_shape(config)
    pairs = shape.head_dim // 2
    rotated = int(shape.rope.fraction * shape.head_dim // 2) if shape.rope.proportional else pairs
    return torch.where(torch.arange(pairs) < rotated, 1.0, STILL)


# --- header -------------------------------------------------------------------------------------------------------


def places(shapes: Mapping[str, Sequence[int]], types: Mapping[str, str]) -> tuple[dict[str, int], int]:
    """Return the offset of each tensor from the end of the header, and the size of all."""
    offsets, end = {}, 0
    for name, shape in shapes.items():
        offsets[name] = end
        end += _aligned(math.prod(shape[:-1]) * row_bytes(TYPES[types[name]], shape[-1]))
    return offsets, end


def header_of(
    metadata: Mapping[str, bytes],
    shapes: Mapping[str, Sequence[int]],
    types: Mapping[str, str],
    offsets: Mapping[str, int],
) -> bytes:
    parts = [MAGIC, struct.pack("<IQQ", 3, len(shapes), len(metadata))]
    parts += [text(key) + value for key, value in metadata.items()]
    for name, shape in shapes.items():
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        parts.append(text(name) + dims + struct.pack("<IQ", TYPES[types[name]].number, offsets[name]))
    header = b"".join(parts)
    return header.ljust(_aligned(len(header)), b"\0")


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
