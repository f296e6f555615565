"""config.json and generation_config.json from the metadata of a GGUF file.

Two things are not in the metadata: the size of the vocabulary, which is that of the embedding, and the fraction of
pairs that a global layer rotates. The tensor `rope_freqs` divides the angles of these layers: by 1 for pairs that
rotate, and by 1e30, so that no angle is left, for the others.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from gesso.checkpoint.gguf.file import GgufFile
from gesso.checkpoint.gguf.names import ARCHITECTURE, ROPE_FREQUENCIES
from gesso.checkpoint.stored import Stored
from gesso.checks import integer, is_integer, number, shown
from gesso.errors import CheckpointError
from gesso.model.config import GLOBAL, NUMBERS, SIZES, SLIDING

STILL = 1e30  # the factor of a pair that does not rotate
END_OF_TURN, TOOL_RESPONSE = (106, "<turn|>"), (50, "<|tool_response>")  # the file has one end token, the model three

# Fields of generation_config.json, and their names in the file after `diffusion.eb_`.
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "max_denoising_steps": "max_steps",
        "t_min": "t_min",
        "t_max": "t_max",
        "entropy_bound": "entropy_bound",
        "stability_threshold": "stability_threshold",
        "confidence_threshold": "confidence_threshold",
    }
)


def check_architecture(file: GgufFile) -> None:
    architecture = file.metadata.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise CheckpointError(
            f"{file.path}: general.architecture is {shown(architecture)}, but gesso runs only {ARCHITECTURE!r}; "
            "give a DiffusionGemma file"
        )


def config(file: GgufFile, tokens: Mapping[int, str]) -> dict[str, Any]:
    """Return the content of config.json. `tokens` are names of tokens by their number."""
    check_architecture(file)
    keys = _Keys(file)
    layers = keys.size("block_count", "num_hidden_layers")
    sliding = _pattern(keys, layers)
    dims = {kind: _head_dim(keys, suffix) for kind, suffix in ((SLIDING, "_swa"), (GLOBAL, ""))}
    text: dict[str, Any] = {
        "model_type": "diffusion_gemma_text",
        "vocab_size": _tensor(file, "token_embd.weight").shape[0],
        "hidden_size": keys.size("embedding_length", "hidden_size"),
        "intermediate_size": keys.size("feed_forward_length", "intermediate_size"),
        "num_hidden_layers": layers,
        "num_attention_heads": keys.size("attention.head_count", "num_attention_heads"),
        "head_dim": dims[SLIDING],
        "global_head_dim": dims[GLOBAL],
        **_kv_heads(keys, sliding, dims),
        "layer_types": [SLIDING if slides else GLOBAL for slides in sliding],
        "sliding_window": keys.size("attention.sliding_window", "sliding_window"),
        "max_position_embeddings": keys.size("context_length", "max_position_embeddings"),
        "num_experts": keys.size("expert_count", "num_experts"),
        "top_k_experts": keys.size("expert_used_count", "top_k_experts"),
        "moe_intermediate_size": keys.size("expert_feed_forward_length", "moe_intermediate_size"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        "final_logit_softcapping": keys.number("final_logit_softcapping", "final_logit_softcapping"),
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa", "rope_theta")},
            GLOBAL: {
                "rope_type": "proportional",
                "partial_rotary_factor": _rotated(file, dims[GLOBAL]),
                "rope_theta": keys.number("rope.freq_base", "rope_theta"),
            },
        },
        # `Config` rejects other values of these.
        "num_kv_shared_layers": keys.optional("attention.shared_kv_layers"),
        "hidden_size_per_layer_input": keys.optional("embedding_length_per_layer_input"),
        **_token_ids(file),
    }
    return {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "model_type": "diffusion_gemma",
        "canvas_length": integer(
            file.metadata.get("diffusion.canvas_length"),
            f"{file.path}: diffusion.canvas_length",
            *SIZES["canvas_length"],
        ),
        "dtype": "bfloat16",
        "eos_token_id": _end_tokens(text["eos_token_id"], tokens, (END_OF_TURN,)),
        "tie_word_embeddings": True,
        "text_config": text,
        "quantization_config": {"quant_method": "gguf"},
    }


def generation_config(file: GgufFile, tokens: Mapping[int, str]) -> dict[str, Any]:
    """Return the content of generation_config.json: the end tokens, and the settings that the file has."""
    end = _end_tokens(_token_ids(file)["eos_token_id"], tokens, (END_OF_TURN, TOOL_RESPONSE))
    fields: dict[str, Any] = {"eos_token_id": end}
    for field, name in SETTINGS.items():
        key = f"diffusion.eb_{name}"
        if key in file.metadata:  # `GenerationDefaults` checks the narrower bounds
            fields[field] = number(file.metadata[key], f"{file.path}: {key}", 0, 1e6)
    if "entropy_bound" in fields:
        sampler = {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": fields.pop("entropy_bound")}
        fields["sampler_config"] = sampler
    return fields


class _Keys:
    """Metadata of the model, whose keys start with the name of the architecture, with errors that name the key."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{ARCHITECTURE}.{key}", default)

    def size(self, key: str, field: str) -> int:
        """Return an integer within the bounds of this field of the configuration."""
        return integer(self.get(key), self.named(key), *SIZES[field])

    def number(self, key: str, field: str) -> float:
        return number(self.get(key), self.named(key), *NUMBERS[field])

    def optional(self, key: str) -> int:
        """Return an integer that is zero if the file does not have it."""
        return integer(self.get(key, 0), self.named(key), 0, 2**32)

    def named(self, key: str) -> str:
        return f"{self.file.path}: {ARCHITECTURE}.{key}"


def _pattern(keys: _Keys, layers: int) -> list[bool]:
    """Return for each layer whether it attends to a window."""
    key = "attention.sliding_window_pattern"
    pattern = keys.get(key)
    if not isinstance(pattern, np.ndarray) or pattern.dtype != bool or len(pattern) != layers:
        raise CheckpointError(f"{keys.named(key)} must have one flag for each of {layers} layers, got {shown(pattern)}")
    if pattern[-1]:
        raise CheckpointError(f"{keys.named(key)}: the last layer of a DiffusionGemma is global, here it has a window")
    return [bool(slides) for slides in pattern]


def _head_dim(keys: _Keys, suffix: str) -> int:
    dim = keys.size(f"attention.key_length{suffix}", "head_dim")
    for key in (f"attention.value_length{suffix}", f"rope.dimension_count{suffix}"):
        if (other := keys.get(key, dim)) != dim:
            raise CheckpointError(
                f"{keys.named(key)} is {shown(other)}, expected {dim} as for attention.key_length{suffix}"
            )
    return dim


def _kv_heads(keys: _Keys, sliding: list[bool], dims: Mapping[str, int]) -> dict[str, Any]:
    """Return the key/value heads of both kinds of layers, or of each layer if those of one kind differ."""
    key = "attention.head_count_kv"
    given = keys.get(key)
    counts = given.tolist() if isinstance(given, np.ndarray) else []
    if is_integer(given):
        counts = [given] * len(sliding)
    if len(counts) != len(sliding) or not all(is_integer(count) for count in counts):
        raise CheckpointError(f"{keys.named(key)} must be one number, or one per layer, got {shown(given)}")
    kinds = {
        kind: {count for count, slides in zip(counts, sliding, strict=True) if slides == (kind == SLIDING)}
        for kind in (SLIDING, GLOBAL)
    }
    if all(len(kind) <= 1 for kind in kinds.values()):
        glob = min(kinds[GLOBAL])
        return {"num_key_value_heads": min(kinds[SLIDING], default=glob), "num_global_key_value_heads": glob}
    return {
        "per_layer_config": {
            str(i): {"head_dim": dims[SLIDING if slides else GLOBAL], "num_key_value_heads": count}
            for i, (count, slides) in enumerate(zip(counts, sliding, strict=True))
        }
    }


def _rotated(file: GgufFile, head_dim: int) -> float:
    """Return the fraction of pairs that rotate in global layers."""
    stored = _tensor(file, ROPE_FREQUENCIES)
    what = f"{file.path}: tensor {ROPE_FREQUENCIES}"
    if stored.dtype != "F32" or stored.shape != (head_dim // 2,):
        raise CheckpointError(
            f"{what} is {stored.dtype} {list(stored.shape)}, expected F32 [{head_dim // 2}], one factor per pair"
        )
    with stored.file.open("rb") as stream:
        stream.seek(stored.offset)
        factors = np.frombuffer(stream.read(stored.nbytes), "<f4")
    rotated = int((factors == 1).sum())
    expected = np.array([1, STILL], np.float32)
    if not rotated or not np.array_equal(factors, np.repeat(expected, [rotated, len(factors) - rotated])):
        raise CheckpointError(f"{what} must be ones, then 1e30; scaled rotary embeddings are not supported")
    return rotated / len(factors)


def _tensor(file: GgufFile, name: str) -> Stored:
    if name not in file.tensors:
        raise CheckpointError(f"{file.path}: tensor {name} is missing; convert the checkpoint again")
    return file.tensors[name]


def _token_ids(file: GgufFile) -> dict[str, int]:
    last = SIZES["vocab_size"][1]
    return {
        f"{role}_token_id": integer(file.metadata.get(key, default), f"{file.path}: {key}", 0, last)
        for role, key, default in (
            ("pad", "tokenizer.ggml.padding_token_id", 0),
            ("bos", "tokenizer.ggml.bos_token_id", 2),
            ("eos", "tokenizer.ggml.eos_token_id", 1),
        )
    }


def _end_tokens(eos: int, tokens: Mapping[int, str], more: Collection[tuple[int, str]]) -> list[int]:
    """Return the end token of the file, and others of DiffusionGemma's vocabulary if this file has it."""
    return [eos, *(token for token, name in more if tokens.get(token) == name and token != eos)]
