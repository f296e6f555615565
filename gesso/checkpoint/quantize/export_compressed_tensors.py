"""Write checkpoints that vLLM and `transformers` load: `gesso quantize SRC DST --format compressed-tensors --to fp8`.

Layout and choices follow vLLM's loader, which is stricter than `transformers`:

- Every expert has linear layers of its own: `experts.0.gate_proj`, and so on.
- Attention and dense MLP are FP8, experts FP8, int4 or NVFP4. Embeddings, router, self-conditioning and vision tower
  are not quantized, and `ignore` names them: vLLM rejects FP8 embeddings, and copies self-conditioning without scales.
- FP8 activations are quantized per token: without that, vLLM refuses FP8 experts.
- Scales of FP8 are bfloat16, which `transformers` rounds them to. Values are rounded for these scales.
- Gate and up of an expert share a global scale of NVFP4: vLLM uses that of the gate for both.
- If the encoder is tied, the scales of dense matrices are written for the encoder, too: `transformers` does not tie
  them. vLLM skips these.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gesso.checkpoint import write
from gesso.checkpoint.linears import DECODER, ENCODER
from gesso.checkpoint.parameters import is_vision, parameters
from gesso.checkpoint.quantize import fp8
from gesso.checkpoint.quantize.convert import (
    SHARD_BYTES,
    ConversionReport,
    open_unquantized,
    relative_error,
    stored_tensors,
)
from gesso.checkpoint.quantize.formats import FORMATS, Format, is_expert, stored_name
from gesso.checkpoint.quantize.matrices import Tensors, each
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.safetensors import weight_files
from gesso.checkpoint.source import CheckpointSource
from gesso.errors import InputError
from gesso.model.config import Config
from gesso.model.quantization_config import QUANTIZATIONS

_IGNORE = (
    *("lm_head", "re:.*embed_tokens.*", "re:.*router.*", "re:.*self_conditioning.*"),
    *("re:.*vision_tower.*", "re:.*embed_vision.*"),
)
_EXPERTS = r"re:.*\.experts\.\d+\..*"
_PER_TOKEN: Mapping[str, Any] = MappingProxyType(
    {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
)


def quantize(source: str | Path, target: Path, to: str, *, shard_bytes: int = SHARD_BYTES) -> ConversionReport:
    if to not in QUANTIZATIONS:
        raise InputError(
            f"unknown quantization {to!r} for compressed-tensors; known are {', '.join(QUANTIZATIONS)}. Embeddings and "
            "head are never quantized in this format"
        )
    opened = open_unquantized(source)
    for name, shape in parameters(opened.config).items():
        if format := _format_of(name, shape, to):
            format.stored(name, shape)  # rejects matrices that cannot be cut into blocks
    errors: dict[str, float] = {}
    raw = {**opened.config.raw, "quantization_config": quantization_config(to)}
    with write.whole(target) as partial:
        write.write_companions(partial, raw, opened.directory)
        write.write_shards(_tensors(opened, to, errors), partial, shard_bytes)
    return ConversionReport(
        format=to,
        source=str(opened.path),
        directory=str(target),
        source_bytes=sum(file.stat().st_size for file in opened.files),
        bytes=sum(file.stat().st_size for file in weight_files(target.expanduser())),
        errors=errors,
    )


def quantization_config(to: str) -> dict[str, Any]:
    groups = [_group("fp8", "Linear")] if to == "fp8" else [_group(to, _EXPERTS), _group("fp8", "Linear")]
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": groups[0]["format"] if len(groups) == 1 else "mixed-precision",
        "kv_cache_scheme": None,
        "config_groups": {f"group_{i}": group for i, group in enumerate(groups)},
        "ignore": list(_IGNORE),
    }


def _group(name: str, target: str) -> dict[str, Any]:
    stored, weights = QUANTIZATIONS[name]
    return {
        "targets": [target],
        "weights": {**weights, "symmetric": True, "dynamic": False},
        "input_activations": dict(_PER_TOKEN) if name == "fp8" else None,
        "output_activations": None,
        "format": stored,
    }


def _format_of(name: str, shape: Any, to: str) -> Format | None:
    """Return the format of a tensor of the text model, or None if it is not quantized."""
    if len(shape) < 2 or {"self_attn", "mlp", "experts"}.isdisjoint(name.split(".")):
        return None
    return _FP8 if to == "fp8" or not is_expert(name) else FORMATS[to]


def _tensors(source: CheckpointSource, to: str, errors: dict[str, float]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors to write with their names, and add the error of each matrix to `errors`."""
    for name, tensor in stored_tensors(source, f"quantizing to {to}"):
        format = None if is_vision(name) else _format_of(name, tensor.shape, to)
        if format is None:
            yield name, tensor
            continue
        packed = format.quantize(name, tensor)
        errors[name] = relative_error(tensor, packed)
        yield from _experts(name, packed) if tensor.ndim == 3 else _matrix(name, packed, source.config)


def _matrix(name: str, packed: Packed, config: Config) -> Iterator[tuple[str, Tensor]]:
    for key, tensor in packed.tensors.items():
        yield stored_name(name, key), tensor
        if key != "weight" and config.tie_word_embeddings:
            yield stored_name(name.replace(DECODER, ENCODER), key), tensor.clone()


def _experts(name: str, packed: Packed) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of each expert, with those of gate and up apart."""
    stem, _, leaf = name.rpartition(".")
    halves = ("gate_proj", "up_proj") if leaf == "gate_up_proj" else (leaf,)
    for number, expert in enumerate(packed.unbind()):
        rows = expert.shape[0] // len(halves)
        for i, half in enumerate(halves):
            for key, tensor in expert.tensors.items():
                if key == "weight_shape":
                    tensor = torch.tensor((rows, expert.shape[1]))
                elif key != "weight_global_scale":
                    tensor = tensor[i * rows : (i + 1) * rows]
                yield f"{stem}.{number}.{half}.{key}", tensor.clone()


# --- FP8 with bfloat16 scales ---------------------------------------------------------------------------------------


def _pack_fp8(weight: Tensor) -> Tensors:
    return each(_pack_matrix, weight)


def _pack_matrix(weight_OI: Tensor) -> Tensors:
    scale_O1 = fp8.pack(weight_OI)["weight_scale"].bfloat16()
    # A scale that was rounded down brings the largest value above 448, to which it is rounded in any case.
    scaled_OI = (weight_OI / scale_O1.float()).clamp_(-fp8.LARGEST, fp8.LARGEST)
    return {"weight": scaled_OI.to(torch.float8_e4m3fn), "weight_scale": scale_O1}


_FP8 = Format("fp8", _pack_fp8, fp8.unpack, fp8.layout)
