"""The metadata of a GGUF file that gesso writes: the keys of llama.cpp's converter, encoded.

`tokenizer.huggingface.json` is added: the whole tokenizer.json, of which the converter's keys hold only a part.
"""

import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from gesso.checkpoint.gguf.choose import mixture
from gesso.checkpoint.gguf.file import ARRAY, BOOL, STRING
from gesso.checkpoint.gguf.metadata import SETTINGS
from gesso.checkpoint.gguf.names import ARCHITECTURE
from gesso.checkpoint.gguf.tokenizer import CONTROL, MODEL, PRINTED, USER_DEFINED, WHOLE, token_names
from gesso.checkpoint.parameters import parameters
from gesso.checkpoint.quantize.formats import is_expert
from gesso.checks import integer, is_integer, mapping, number, shown
from gesso.errors import CheckpointError, InputError
from gesso.files import parse_json, read_json, read_text
from gesso.model.config import Config, LayerShape

# Numbers of value types.
U32 = 4
I32 = 5
F32 = 6
# Types of tokens.
NORMAL = 1
UNUSED = 5
BYTE = 6
SCORE = -1000.0  # of every token: the converter's placeholder


# --- values -------------------------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    """Return a string with its length, as for names and keys."""
    data = value.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def string_value(value: str) -> bytes:
    return struct.pack("<I", STRING) + text(value)


def integer_value(value: int) -> bytes:
    return struct.pack("<II", U32, value)


def _f32(value: float) -> bytes:
    return struct.pack("<If", F32, value)


def _bool(value: bool) -> bytes:
    return struct.pack("<I?", BOOL, value)


def _array(kind: int, format: str, values: Sequence[Any]) -> bytes:
    return struct.pack(f"<IIQ{len(values)}{format}", ARRAY, kind, len(values), *values)


def _strings(values: Sequence[str]) -> bytes:
    return struct.pack("<IIQ", ARRAY, STRING, len(values)) + b"".join(map(text, values))


# --- keys ---------------------------------------------------------------------------------------------------------


def keys(config: Config, directory: Path, to: str, name: str) -> dict[str, bytes]:
    """Return all metadata of a checkpoint; its tokenizer and generation settings are in `directory`."""
    general = {
        "general.architecture": string_value(ARCHITECTURE),
        "general.type": string_value("model"),
        "general.name": string_value(name),
        "general.size_label": string_value(_size_label(config)),
        "general.file_type": integer_value(mixture(to).number),
        "general.quantization_version": integer_value(2),
    }
    model = {f"{ARCHITECTURE}.{key}": value for key, value in model_keys(config).items()}
    diffusion = {"diffusion.canvas_length": integer_value(config.canvas_length), **_settings(directory)}
    return general | model | diffusion | _tokenizer(config, directory)


def _size_label(config: Config) -> str:
    """Return the number of experts, and of parameters with one of them: 128x2.6B."""
    sizes = {name: prod(shape) for name, shape in parameters(config).items()}
    experts = sum(size for name, size in sizes.items() if is_expert(name))
    count = sum(sizes.values()) - experts + experts // config.num_experts
    unit, letter = next(((unit, letter) for unit, letter in ((1e9, "B"), (1e6, "M")) if count > unit), (1e3, "K"))
    return f"{config.num_experts}x{count / unit:.{1 if round(count / unit) < 10 else 0}f}{letter}"


def global_shape(config: Config) -> LayerShape:
    """Return the shape of global layers, after checking that a file can describe the layers: one shape per kind."""
    kinds: dict[bool, LayerShape] = {}
    for layer in config.layers:
        known = kinds.setdefault(layer.sliding, layer)
        if (layer.head_dim, layer.rope) != (known.head_dim, known.rope):
            raise InputError("a GGUF file has one head size per kind of layer, but this model has several")
    if True in kinds and kinds[True].rope.proportional and kinds[True].rope.fraction < 1:
        raise InputError("a GGUF file cannot describe sliding layers that rotate only a part of a head")
    return kinds[False]


def model_keys(config: Config) -> dict[str, bytes]:
    full = global_shape(config)
    local = next((layer for layer in config.layers if layer.sliding), full)
    return {
        "block_count": integer_value(len(config.layers)),
        "context_length": integer_value(config.max_position_embeddings),
        "embedding_length": integer_value(config.hidden_size),
        "feed_forward_length": integer_value(config.intermediate_size),
        "attention.head_count": integer_value(config.num_attention_heads),
        "attention.head_count_kv": _array(I32, "i", [layer.kv_heads for layer in config.layers]),
        "attention.sliding_window": integer_value(config.sliding_window),
        "attention.sliding_window_pattern": _array(BOOL, "?", [layer.sliding for layer in config.layers]),
        "attention.key_length": integer_value(full.head_dim),
        "attention.value_length": integer_value(full.head_dim),
        "attention.key_length_swa": integer_value(local.head_dim),
        "attention.value_length_swa": integer_value(local.head_dim),
        "attention.layer_norm_rms_epsilon": _f32(config.rms_norm_eps),
        "attention.causal": _bool(False),
        "attention.shared_kv_layers": integer_value(0),
        "embedding_length_per_layer_input": integer_value(0),
        "rope.freq_base": _f32(full.rope.theta),
        "rope.freq_base_swa": _f32(local.rope.theta),
        "rope.dimension_count": integer_value(full.head_dim),
        "rope.dimension_count_swa": integer_value(local.head_dim),
        "final_logit_softcapping": _f32(config.final_logit_softcapping),
        "expert_count": integer_value(config.num_experts),
        "expert_used_count": integer_value(config.top_k_experts),
        "expert_feed_forward_length": integer_value(config.moe_intermediate_size),
    }


def _settings(directory: Path) -> dict[str, bytes]:
    """Return the settings of the diffusion in generation_config.json."""
    path = directory / "generation_config.json"
    given = read_json(path) if path.exists() else {}
    given = {**given, **mapping(given.get("sampler_config"), f"{path}: sampler_config")}
    entries = {}
    for field, name in SETTINGS.items():
        if given.get(field) is not None:
            is_count = field in ("max_denoising_steps", "stability_threshold")
            value = (integer if is_count else number)(given[field], f"{path}: {field}", 0, 1e6)
            entries[f"diffusion.eb_{name}"] = integer_value(int(value)) if is_count else _f32(value)
    return entries


def _tokenizer(config: Config, directory: Path) -> dict[str, bytes]:
    path = directory / "tokenizer.json"
    whole = read_text(path, error=CheckpointError)
    names = token_names(whole, str(path))
    if beyond := [i for i in names if not 0 <= i < config.vocab_size]:
        raise CheckpointError(f"{path}: token {beyond[0]} is outside the vocabulary of {config.vocab_size} tokens")
    data = parse_json(whole)
    if data["model"].get("type") != "BPE":
        raise CheckpointError(f"{path}: a GGUF file needs a BPE tokenizer, got {data['model'].get('type')!r}")
    types = _types(names, data.get("added_tokens") or [], config.vocab_size)
    numbers = {name: i for i, name in names.items()}
    text_config: Mapping[str, Any] = config.raw.get("text_config", {})
    roles = {
        "bos": text_config.get("bos_token_id", 2),
        "eos": config.eos_token_ids[0],
        "padding": config.pad_token_id,
        "unknown": numbers.get("<unk>"),
        "mask": numbers.get("<mask>"),
    }
    template = _template(directory)
    return {
        "tokenizer.ggml.model": string_value(MODEL),
        "tokenizer.ggml.tokens": _strings([names.get(i, f"[PAD{i}]") for i in range(config.vocab_size)]),
        "tokenizer.ggml.scores": _array(F32, "f", [SCORE] * config.vocab_size),
        "tokenizer.ggml.token_type": _array(I32, "i", types),
        "tokenizer.ggml.merges": _strings(_merges(data["model"].get("merges"), path)),
        **{f"tokenizer.ggml.{role}_token_id": integer_value(i) for role, i in roles.items() if is_integer(i)},
        "tokenizer.ggml.add_bos_token": _bool(True),
        "tokenizer.ggml.add_space_prefix": _bool(False),
        **({"tokenizer.chat_template": string_value(template)} if template is not None else {}),
        WHOLE: string_value(whole),
    }


def _types(names: Mapping[int, str], added: Sequence[Mapping[str, Any]], count: int) -> list[int]:
    special = {one["id"]: bool(one.get("special")) and one["content"] not in PRINTED for one in added}
    types = []
    for i in range(count):
        if i in special:
            types.append(CONTROL if special[i] else USER_DEFINED)
        elif i not in names:
            types.append(UNUSED)
        else:
            types.append(BYTE if len(names[i]) == 6 and names[i].startswith("<0x") else NORMAL)
    return types


def _merges(merges: Any, path: Path) -> list[str]:
    """Return merges, which a file has as pairs or as text."""
    for merge in merges if isinstance(merges, list) else [merges]:
        if not isinstance(merge, str) and not (
            isinstance(merge, list) and all(isinstance(part, str) for part in merge)
        ):
            raise CheckpointError(f"{path}: merges must be pairs of tokens, got {shown(merge)}")
    return [_merge(merge) for merge in merges]


def _merge(merge: str | Sequence[str]) -> str:
    """Return a merge as two tokens with a space between. A space within a token becomes Ġ, as in the converter."""
    return merge if isinstance(merge, str) else " ".join(part.replace(" ", "\u0120") for part in merge)


def _template(directory: Path) -> str | None:
    path = directory / "chat_template.jinja"
    if path.exists():
        return read_text(path, error=CheckpointError)
    path = directory / "tokenizer_config.json"
    template = read_json(path).get("chat_template") if path.exists() else None
    return template if isinstance(template, str) else None
