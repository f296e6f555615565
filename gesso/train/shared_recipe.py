"""The recipe of a run as TOML, for whoever receives the trained model: all settings, without local paths."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from gesso.bundled import BASE
from gesso.checkpoint.find import hub_base
from gesso.train.recipe import ContinuedLora, Recipe


def shared_recipe(recipe: Recipe) -> str:
    """Return the recipe with the names of files and directories in place of their paths."""
    path = recipe.model.path
    recipe = replace(
        recipe,
        model=replace(recipe.model, path=hub_base(path) or Path(path or BASE).name),
        data=replace(recipe.data, files=tuple(Path(file).name for file in recipe.data.files)),
        run=replace(recipe.run, out=Path(recipe.run.out).name),
    )
    sections = {field.name: getattr(recipe, field.name) for field in fields(recipe)}
    return "\n".join(_section(name, settings) for name, settings in sections.items() if settings is not None)


def _section(name: str, settings: Any) -> str:
    values = asdict(settings)
    if isinstance(settings, ContinuedLora):
        values = {"from": hub_base(settings.adapter) or Path(settings.adapter).name}
    lines = [f"{key} = {_value(value)}" for key, value in values.items() if value is not None]
    return "\n".join([f"[{name}]", *lines, ""])


def _value(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False)  # as in TOML
    return str(value)
