"""Small GGUF files, written with the `gguf` package: random blocks of any type, and the metadata of a converter."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
from gguf import GGMLQuantizationType as Kind
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from examples.mini.vocabulary import RESERVED, SPECIALS
from gesso.checkpoint.stored import ParameterRecipe
from gesso.model.config import Config
from tests import tiny

HIDDEN, WIDTH, EXPERT, EXPERTS, VOCABULARY = 256, 256, 64, 4, tiny.VOCABULARY
HEADS, DIMS, KV = 4, (16, 32), (2, 1)  # of the sliding and of the global layer
METADATA: Mapping[str, tuple[str, Any]] = {
    "diffusion-gemma.block_count": ("uint32", 2),
    "diffusion-gemma.context_length": ("uint32", 8192),
    "diffusion-gemma.embedding_length": ("uint32", HIDDEN),
    "diffusion-gemma.feed_forward_length": ("uint32", WIDTH),
    "diffusion-gemma.attention.head_count": ("uint32", HEADS),
    "diffusion-gemma.attention.head_count_kv": ("array", list(KV)),
    "diffusion-gemma.attention.sliding_window": ("uint32", 128),
    "diffusion-gemma.attention.sliding_window_pattern": ("array", [True, False]),
    "diffusion-gemma.attention.key_length": ("uint32", DIMS[1]),
    "diffusion-gemma.attention.value_length": ("uint32", DIMS[1]),
    "diffusion-gemma.attention.key_length_swa": ("uint32", DIMS[0]),
    "diffusion-gemma.attention.value_length_swa": ("uint32", DIMS[0]),
    "diffusion-gemma.attention.layer_norm_rms_epsilon": ("float32", 1e-6),
    "diffusion-gemma.attention.causal": ("bool", False),
    "diffusion-gemma.attention.shared_kv_layers": ("uint32", 0),
    "diffusion-gemma.embedding_length_per_layer_input": ("uint32", 0),
    "diffusion-gemma.rope.freq_base": ("float32", 1e6),
    "diffusion-gemma.rope.freq_base_swa": ("float32", 1e4),
    "diffusion-gemma.rope.dimension_count": ("uint32", DIMS[1]),
    "diffusion-gemma.rope.dimension_count_swa": ("uint32", DIMS[0]),
    "diffusion-gemma.final_logit_softcapping": ("float32", 30.0),
    "diffusion-gemma.expert_count": ("uint32", EXPERTS),
    "diffusion-gemma.expert_used_count": ("uint32", 2),
    "diffusion-gemma.expert_feed_forward_length": ("uint32", EXPERT),
    "diffusion.canvas_length": ("uint32", 256),
    "diffusion.eb_max_steps": ("uint32", 24),
    "diffusion.eb_t_min": ("float32", 0.4),
    "diffusion.eb_entropy_bound": ("float32", 0.1),
    "tokenizer.ggml.bos_token_id": ("uint32", 2),
    "tokenizer.ggml.eos_token_id": ("uint32", 1),
    "tokenizer.ggml.padding_token_id": ("uint32", 0),
    "tokenizer.huggingface.json": ("string", tiny.tokenizer_json()),
}
SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (VOCABULARY, HIDDEN),
    "output_norm.weight": (HIDDEN,),
    "self_cond_pre_norm.weight": (HIDDEN,),
    "self_cond_gate.weight": (WIDTH, HIDDEN),
    "self_cond_up.weight": (WIDTH, HIDDEN),
    "self_cond_down.weight": (HIDDEN, WIDTH),
    "rope_freqs.weight": (DIMS[1] // 2,),
}
for i in range(2):
    SHAPES |= {
        f"blk.{i}.{name}": shape
        for name, shape in {
            "attn_q.weight": (HEADS * DIMS[i], HIDDEN),
            "attn_k.weight": (KV[i] * DIMS[i], HIDDEN),
            **({"attn_v.weight": (KV[i] * DIMS[i], HIDDEN)} if i == 0 else {}),
            "attn_output.weight": (HIDDEN, HEADS * DIMS[i]),
            "attn_q_norm.weight": (DIMS[i],),
            "attn_k_norm.weight": (DIMS[i],),
            **{
                f"{norm}.weight": (HIDDEN,)
                for norm in (
                    *("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm_1", "pre_ffw_norm_2"),
                    *("post_ffw_norm_2", "post_ffw_norm"),
                )
            },
            "ffn_gate.weight": (WIDTH, HIDDEN),
            "ffn_up.weight": (WIDTH, HIDDEN),
            "ffn_down.weight": (HIDDEN, WIDTH),
            "ffn_gate_inp.weight": (EXPERTS, HIDDEN),
            "ffn_gate_inp.scale": (HIDDEN,),
            "ffn_gate_up_exps.weight": (EXPERTS, 2 * EXPERT, HIDDEN),
            "ffn_down_exps.weight": (EXPERTS, HIDDEN, EXPERT),
            "ffn_down_exps.scale": (EXPERTS,),
            "layer_output_scale.weight": (1,),
            "enc_layer_output_scale.weight": (1,),
        }.items()
    }
TEXTS = (
    "The quick brown fox  jumps over\n\n\tthe lazy dog.",
    "def f(x: int) -> str:\n    return f'{x:>10}'  # comment\n",
    "Zürich, naïve, 東京, 🦊🏳️‍🌈, \u0000\u200b, ▁, ﬁ",
    "<bos><|turn>user\nhi<turn|>\n<|turn>model\n<|channel>thought\n<channel|>ok<turn|>",
    "   leading and trailing   ",
    "",
)
SCALES = {"Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # bytes of float16 numbers; others at 0

Tensors = dict[str, tuple[np.ndarray, str]]  # bytes of blocks or float32 values, and the type


def random_blocks(kind: str, shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """Return random bytes whose scales give values of about 0.1: no types but a few can be quantized by the package."""
    rows, width = gguf.quant_shape_to_byte_shape(shape, Kind[kind])[:-1], gguf.GGML_QUANT_SIZES[Kind[kind]]
    blocks = generator.integers(0, 256, (*rows, shape[-1] // width[0], width[1]), dtype=np.uint8)
    if kind == "MXFP4":
        blocks[..., 0] = generator.integers(119, 124, blocks.shape[:-1])
    elif kind == "NVFP4":
        blocks[..., :4] = generator.integers(0, 0x28, (*blocks.shape[:-1], 4))  # subnormal numbers and zero, too
    else:
        for at in SCALES.get(kind, (0,)):
            size = {"Q4_K": 1e-3, "Q5_K": 5e-4, "Q6_K": 5e-5, "IQ4_NL": 2e-3, "Q8_0": 2e-3}.get(kind, 2e-2)
            scale = generator.normal(0, size, (*blocks.shape[:-1], 1)).astype(np.float16)  # half of them negative
            blocks[..., at : at + 2] = scale.view(np.uint8)
    return blocks.reshape(*rows, -1)


def tensors(choose: Callable[[str], str], seed: int = 0) -> Tensors:
    """Return all tensors of a model; `choose` gives the type of each matrix. Rows that do not fit it are Q8_0."""
    generator = np.random.default_rng(seed)
    found: Tensors = {}
    for name, shape in SHAPES.items():
        if name == "rope_freqs.weight":
            found[name] = (np.repeat(np.float32([1, 1e30]), [4, 12]).astype(np.float32), "F32")
        elif len(shape) == 1:
            found[name] = (generator.normal(1, 0.1, shape).astype(np.float32), "F32")
        else:
            kind = "F32" if "gate_inp" in name else choose(name)
            kind = kind if shape[-1] % gguf.GGML_QUANT_SIZES[Kind[kind]][0] == 0 else "Q8_0"
            values = generator.normal(0, 0.1, shape).astype(np.float32)
            found[name] = (values if kind in ("F32", "F16", "BF16") else random_blocks(kind, shape, generator), kind)
    return found


def write(
    path: Path, given: Tensors, changes: Mapping[str, tuple[str, Any] | None] | None = None, **options: Any
) -> Path:
    """Write tensors with METADATA, and `changes` to it: None removes a key. `options` are those of GGUFWriter."""
    changes = changes or {}
    architecture = changes.get("general.architecture", ("string", "diffusion-gemma"))
    writer = gguf.GGUFWriter(path, architecture[1], **options)
    for key, value in ({**METADATA, **changes}).items():
        if value is not None and key != "general.architecture":
            getattr(writer, f"add_{value[0]}")(key, value[1])
    for name, (data, kind) in given.items():
        if kind in ("F16", "BF16"):
            data = gguf.quants.quantize(data, Kind[kind])
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=Kind[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dequantized(path: Path) -> dict[str, np.ndarray]:
    """Return all tensors as the `gguf` package reads and dequantizes them."""
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors
    }


def weights(recipes: Mapping[str, ParameterRecipe]) -> dict[str, Any]:
    """Read and build all parameters."""
    return {name: recipe.build([part(stored) for stored in recipe.parts]) for name, recipe in recipes.items()}


def part(stored: Any) -> torch.Tensor:
    dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    raw = np.fromfile(stored.file, np.uint8, stored.nbytes, offset=stored.offset)
    tensor = torch.from_numpy(raw)
    if stored.dtype in dtypes:
        return tensor.view(dtypes[stored.dtype]).reshape(stored.shape)
    return tensor.reshape(*stored.shape[:-1], -1)


def config(raw: Mapping[str, Any]) -> Config:
    """Return a configuration without `quantization_config`."""
    return Config.from_dict({key: value for key, value in raw.items() if re.fullmatch("(?!quantization).*", key)})


def gemma_tokenizer() -> dict[str, Any]:
    """Learn a small tokenizer that is built like Gemma's, and return its tokenizer.json."""
    core = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(vocab_size=1200, show_progress=False, special_tokens=RESERVED)
    text = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    core.train_from_iterator(text.splitlines(keepends=True), trainer)
    data: dict[str, Any] = json.loads(core.to_str())
    data["added_tokens"] = [one for one in data["added_tokens"] if one["id"] in SPECIALS]  # not the bytes
    return data
