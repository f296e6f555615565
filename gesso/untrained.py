"""A tiny checkpoint with random weights, made on the spot: every part of a DiffusionGemma, none of its knowledge.

It stands in for the model in the box. Its tokenizer spells text in bytes and knows the chat format's special tokens.
"""

import json
import os
from pathlib import Path

from gesso.config import Config
from gesso.errors import GessoError

SPECIALS = {
    0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 46: "<|tool>", 47: "<tool|>", 48: "<|tool_call>",
    49: "<tool_call|>", 50: "<|tool_response>", 51: "<tool_response|>", 52: '<|"|>', 98: "<|think|>",
    100: "<|channel>", 101: "<channel|>", 105: "<|turn>", 106: "<turn|>",
}  # fmt: skip
VOCABULARY = 384  # specials at the ids of the real vocabulary, then the 256 bytes

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
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "num_experts": 8,
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


def directory() -> Path:
    """Where the checkpoint is, made at the first call."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gesso"
    target = cache / "untrained-1"
    if not target.exists():
        try:
            make(target)
        except (GessoError, OSError):
            if not target.exists():  # else another process was faster, and made the same
                raise
    return target


def make(target: Path, seed: int = 0) -> None:
    import torch

    from gesso.checkpoint import save
    from gesso.model.init import randomise
    from gesso.model.transformer import DiffusionGemma

    model = DiffusionGemma(Config.from_dict(CONFIG))
    # Larger than the usual 0.02: an untrained model should have opinions, or no canvas would ever settle.
    randomise(model, seed, std=0.2)
    with torch.no_grad():
        for norm in (model.decoder.norm, model.encoder.norm):
            norm.weight.fill_(2.0)
    save(model, target, files={"tokenizer.json": tokenizer_json(), "generation_config.json": "{}\n"})


def tokenizer_json() -> str:
    pieces = {piece: i for i, piece in SPECIALS.items()}
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
