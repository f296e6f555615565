"""A tokenizer with one token per character, and a model of a size that a CPU trains from random weights in minutes.

The tokenizer is gesso-mini's without its merges, which come from Python code and would make one token of `self`. With
one token per character, positions of the canvas are positions of the sequence. A character that is not ASCII becomes
one token per byte.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import gesso
from gesso.errors import InputError

CHARACTERS = 481  # ids below are special tokens, bytes and ASCII characters, those above merged ones
WIDTH, LAYERS, HEAD = 128, 4, 64


def without_merges(tokenizer: dict[str, Any], size: int | None = None) -> dict[str, Any]:
    """Return the contents of tokenizer.json without merges, and with the first `size` ids only."""
    vocabulary = {token: i for token, i in tokenizer["model"]["vocab"].items() if size is None or i < size}
    return {**tokenizer, "model": {**tokenizer["model"], "vocab": vocabulary, "merges": []}}


def write_shape(out: Path) -> None:
    """Write configuration, tokenizer and template of a small model, for a recipe with `scratch = true`."""
    if out.exists():
        raise InputError(f"{out}: already exists; delete it to write it again")
    source = gesso.load("gesso-mini", device="cpu").directory
    config, tokenizer = (json.loads((source / name).read_text("utf-8")) for name in ("config.json", "tokenizer.json"))
    heads = WIDTH // HEAD
    config["text_config"] |= {
        "vocab_size": CHARACTERS,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "moe_intermediate_size": WIDTH,
        "num_experts": 1,
        "top_k_experts": 1,
        "num_hidden_layers": LAYERS,
        "layer_types": ["full_attention"] * LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "num_global_key_value_heads": heads,
    }
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (out / "tokenizer.json").write_text(json.dumps(without_merges(tokenizer, CHARACTERS)), encoding="utf-8")
    for name in ("generation_config.json", "chat_template.jinja"):
        shutil.copy(source / name, out)
