"""The model card of an adapter or a merged model: README.md with the metadata that the hub reads."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gesso.checkpoint.find import hub_base
from gesso.errors import InputError
from gesso.files import read_json, read_text

MERGE, RECIPE = "merge.json", "recipe.toml"
RECIPE_LIMIT = 1 << 20  # bytes


@dataclass(frozen=True, kw_only=True)
class Merge:
    """The origin of a merged model, in its `merge.json`. Local directories have no name there."""

    base: str | None
    adapter: str | None
    rank: int
    alpha: float
    targets: tuple[str, ...]


def adapter_card(name: str, directory: Path) -> str:
    """Return the card of an adapter that is pushed as `name`."""
    config = read_json(directory / "adapter_config.json")
    given = config.get("base_model_name_or_path")
    base = hub_base(given) if isinstance(given, str) else None  # a local path is of no use to others
    shown = base or "BASE"
    facts = [f"A LoRA adapter of rank {config.get('r')} and alpha {config.get('lora_alpha')} for {_link(base)}."]
    use = [
        "```sh",
        f'gesso generate "Hello" --model {shown} --adapter {name}',
        "```",
        "",
        "It is in the format of `peft`:",
        "",
        "```python",
        f'model = peft.PeftModel.from_pretrained(base, "{name}")',
        "```",
    ]
    return _card(
        name, {"base_model": base, "base_model_relation": "adapter" if base else None, "library_name": "peft"},
        ["gesso", "lora", "diffusion_gemma"], facts, use, directory,
    )  # fmt: skip


def model_card(name: str, directory: Path) -> str:
    """Return the card of a model that is pushed as `name`."""
    merge: Mapping[str, Any] = read_json(directory / MERGE) if (directory / MERGE).is_file() else {}
    base = merge.get("base") or _trained_from(directory)
    facts = [f"{_link(base)}, fine-tuned." if base else "A DiffusionGemma checkpoint."]
    if merge:
        adapter = f"the adapter {_link(merge['adapter'])}" if merge.get("adapter") else "an adapter"
        facts = [f"{_link(base)} merged with {adapter} of rank {merge.get('rank')} and alpha {merge.get('alpha')}."]
    use = [
        "```sh",
        f'gesso generate "Hello" --model {name}',
        "```",
        "",
        "It also loads in `transformers`:",
        "",
        "```python",
        f'model = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained("{name}")',
        "```",
    ]
    return _card(
        name, {"base_model": base, "base_model_relation": "finetune" if base else None, "library_name": "gesso"},
        ["gesso", "diffusion_gemma"], facts, use, directory,
    )  # fmt: skip


def _trained_from(directory: Path) -> str | None:
    """Return the base in the recipe of a trained model, if it is on the hub."""
    try:
        model = tomllib.loads(read_text(directory / RECIPE, RECIPE_LIMIT))["model"]
        return None if model["scratch"] else hub_base(model["path"])
    except (InputError, tomllib.TOMLDecodeError, KeyError, TypeError):  # no recipe, or one that someone has edited
        return None


def _card(
    name: str, metadata: Mapping[str, str | None], tags: list[str], facts: list[str], use: list[str], directory: Path
) -> str:
    head = [f"{key}: {json.dumps(value)}" for key, value in metadata.items() if value]  # JSON strings are YAML strings
    lines = ["---", *head, "tags:", *(f"- {tag}" for tag in tags), "---", "", f"# {name.partition('/')[2]}", "", *facts]
    lines += ["", "## Use", "", *use]
    if (directory / RECIPE).is_file():
        text = read_text(directory / RECIPE, RECIPE_LIMIT).strip()
        lines += [
            "",
            "## Training",
            "",
            "The recipe of `gesso train`, without local paths:",
            "",
            "```toml",
            text,
            "```",
        ]
    return "\n".join(lines) + "\n"


def _link(name: str | None) -> str:
    return f"[{name}](https://huggingface.co/{name})" if name else "a base model that is not on the hub"
