"""Write a recipe as TOML. Reading the file gives an equal recipe."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from gesso.files import replacing
from gesso.train.recipe import ContinuedLora, Recipe


def to_toml(recipe: Recipe, comment: str = "") -> str:
    """Return the recipe with every setting, after a comment. TOML has no null: a None is left out."""
    lines = [f"# {line}" for line in comment.splitlines()]
    for item in fields(recipe):
        if (section := getattr(recipe, item.name)) is None:
            continue
        lines += ["", f"[{item.name}]"]
        values = {field.name: getattr(section, field.name) for field in fields(section)}
        if isinstance(section, ContinuedLora):
            values = {"from": section.adapter}
        lines += [f"{name} = {_value(value)}" for name, value in values.items() if value is not None]
    return "\n".join(lines).lstrip("\n") + "\n"


def write_recipe(recipe: Recipe, path: Path, comment: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(to_toml(recipe, comment).encode("utf-8"))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    # A JSON string is a TOML string, apart from DEL, which TOML wants escaped. Floats are written by repr, exactly.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)
