"""A tiny checkpoint with random weights and every part of a DiffusionGemma. Writing it takes less than a second.

Its tokenizer has one token per byte, and the special tokens of the chat format.
"""

import json
from pathlib import Path
from typing import Any

import torch

from examples.mini.vocabulary import SPECIALS
from gesso.checkpoint.write import save
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma
from gesso.model.vision import Vision

IMAGES = {"image_token_id": 110, "boi_token_id": 111, "eoi_token_id": 112}
VOCABULARY = 384  # special tokens with the ids of the real vocabulary, then the 256 bytes

CONFIG = {
    "architectures": ["DiffusionGemmaForBlockDiffusion"],
    "model_type": "diffusion_gemma",
    "canvas_length": 256,
    "dtype": "float32",
    "eos_token_id": [1, 106, 50],
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "diffusion_gemma_text",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
        "max_position_embeddings": 8192,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 1,
    },
    "vision_config": {
        "model_type": "gemma4_vision",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "patch_size": 4,
        "position_embedding_size": 16,
    },
}


def make(target: Path, seed: int = 0, sees: bool = False, **changes: Any) -> Path:
    """Write the checkpoint and return its directory. `changes` override fields of `text_config`.

    If it `sees`, it has tokens for images, which see each other, and a tower with random weights.
    """
    text = CONFIG["text_config"] | ({"use_bidirectional_attention": "vision"} if sees else {}) | changes
    config = Config.from_dict({**CONFIG, **(IMAGES if sees else {}), "text_config": text})
    model = DiffusionGemma(config)
    if sees:
        model.vision = Vision(config.vision, config.hidden_size)
    # Larger than the usual 0.02: predictions must be confident, or no canvas would settle.
    randomise(model, seed, std=0.2)
    with torch.no_grad():
        for norm in (model.decoder.norm, model.encoder.norm):
            norm.weight.fill_(2.0)
    save(model, target, files={"tokenizer.json": tokenizer_json(), "generation_config.json": "{}\n"})
    return target


@torch.no_grad()
def randomise(model: DiffusionGemma, seed: int, std: float = 0.02) -> None:
    """Fill matrices with normal values that depend only on the seed, and norms and scales with ones."""
    generator = torch.Generator(model.device).manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, std, generator=generator)


def tokenizer_json() -> str:
    """Return the contents of the byte tokenizer's `tokenizer.json`."""
    pieces = {piece: i for i, piece in SPECIALS.items()} | {"<|image|>": 110, "<|image>": 111, "<image|>": 112}
    pieces |= {f"<0x{byte:02X}>": 128 + byte for byte in range(256)}
    names = {i: piece for piece, i in pieces.items()}
    vocabulary = {names.get(i, f"<unused{i}>"): i for i in range(VOCABULARY)}
    special = [
        {"id": i, "content": piece, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i, piece in names.items() if i < 128
    ]  # fmt: skip
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": special,
            "normalizer": None,
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": "<unk>",
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": True,
                "byte_fallback": True,
                "ignore_merges": False,
                "vocab": vocabulary,
                "merges": [],
            },
        },
        ensure_ascii=False,
    )
