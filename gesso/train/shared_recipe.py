"""Turn a recipe into TOML that can be published with the trained model: every setting, but no local paths."""

from dataclasses import replace
from pathlib import Path

from gesso.bundled import BASE
from gesso.checkpoint.find import hub_base
from gesso.train.files import is_local
from gesso.train.recipe import ContinuedLora, Recipe
from gesso.train.recipe_file import to_toml


def shared_recipe(recipe: Recipe) -> str:
    """Return the recipe with the names of files and directories in place of their paths."""
    path = recipe.model.path
    lora = recipe.lora
    held_out = recipe.held_out
    distill = recipe.distill
    if isinstance(lora, ContinuedLora):
        lora = replace(lora, adapter=hub_base(lora.adapter) or Path(lora.adapter).name)
    if held_out is not None:
        held_out = replace(held_out, files=tuple(map(_shared, held_out.files)))
    if distill is not None:
        distill = replace(distill, trajectories=tuple(Path(name).name for name in distill.trajectories))
    return to_toml(
        replace(
            recipe,
            model=replace(recipe.model, path=hub_base(path) or Path(path or BASE).name),
            data=replace(recipe.data, files=tuple(map(_shared, recipe.data.files))),
            run=replace(recipe.run, out=Path(recipe.run.out).name),
            lora=lora,
            held_out=held_out,
            distill=distill,
        )
    )


def _shared(name: str) -> str:
    return Path(name).name if is_local(name) else name
