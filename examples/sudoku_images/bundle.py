"""Write gesso-sudoku with a vision tower: the text weights as they are, and tokens for images."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from examples.sudoku_images.tower import config_fields
from gesso.checkpoint.load import load
from gesso.checkpoint.parameters import is_vision
from gesso.checkpoint.safetensors import INDEX
from gesso.checkpoint.source import open_source
from gesso.checkpoint.write import save
from gesso.model.config import Config
from gesso.model.vision import Vision

SHARD = 15_000_000  # bytes of a file, as in the package
# Reserved tokens of the vocabulary, which no text has.
TOKENS = {"image_token_id": (110, "<|image|>"), "boi_token_id": (111, "<|image>"), "eoi_token_id": (112, "<image|>")}


def write_bundle(vision: Vision, target: Path, source: Path) -> None:
    """Write the checkpoint in `source` with this tower to a new directory, in bfloat16."""
    model = load(open_source(source), torch.device("cpu"), torch.bfloat16, text_only=True)
    raw = {
        **model.config.raw,
        **{name: token for name, (token, _) in TOKENS.items()},
        "vision_config": config_fields(vision.tower.config),
    }
    model.config = Config.from_dict(raw)
    model.vision = vision.to("cpu", torch.bfloat16)
    tokenizer = with_image_tokens(json.loads((source / "tokenizer.json").read_text(encoding="utf-8")))
    save(model, target, source=source, shard_bytes=SHARD)
    separate_tower(target)
    (target / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    for name in ("chat_template.jinja", "generation_config.json", "README.md"):
        shutil.copyfile(source / name, target / name)


def separate_tower(directory: Path) -> None:
    """Move the tower into the last file of a checkpoint in several files: another tower then changes that file only."""
    index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
    old = sorted(set(index["weight_map"].values()))
    parts = [load_file(directory / name) for name in old]
    tower = {name: part.pop(name) for part in parts for name in list(part) if is_vision(name)}
    for name in old:
        (directory / name).unlink()
    parts.append(tower)
    index["weight_map"] = {}
    for number, part in enumerate(parts, start=1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        save_file(part, directory / file, metadata={"format": "pt"})
        index["weight_map"] |= dict.fromkeys(part, file)
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def with_image_tokens(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a tokenizer.json in which reserved tokens have the names of those for images."""
    ids = {token: name for token, name in TOKENS.values()}
    vocabulary = {ids.get(token, piece): token for piece, token in tokenizer["model"]["vocab"].items()}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [token for token in tokenizer["added_tokens"] if token["id"] not in ids]
    added += [{"id": token, "content": name, **flags} for token, name in ids.items()]
    return {
        **tokenizer,
        "added_tokens": sorted(added, key=lambda token: int(token["id"])),
        "model": {**tokenizer["model"], "vocab": vocabulary},
    }
