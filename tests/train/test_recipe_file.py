"""A recipe that is written and read again is the same recipe."""

from dataclasses import replace

import pytest

from gesso.adapters import LoraSettings
from gesso.errors import InputError
from gesso.train.recipe import (
    DataSettings,
    EvalSettings,
    HeldOutSettings,
    ModelSettings,
    ObjectiveSettings,
    OptimizerSettings,
    Recipe,
    RunSettings,
    load,
)
from gesso.train.recipe_file import write_recipe

PLAIN = Recipe(
    model=ModelSettings(),
    data=DataSettings(files=("a.jsonl",), max_length=8),
    objective=ObjectiveSettings(),
    optimizer=OptimizerSettings(),
    run=RunSettings(out="out", steps=1, batch_size=1),
)


@pytest.mark.parametrize(
    "recipe",
    [
        PLAIN,
        replace(
            PLAIN,
            model=ModelSettings(path='C:\\a "b"\n\x7fé\t', dtype="bfloat16", quantize="int4"),
            data=DataSettings(files=("a.jsonl", "o/n:test"), max_length=9, repeat=(1, 2), cut=True, infill=0.1),
            objective=ObjectiveSettings(canvases_per_example="all", canvas_lengths=(16, 32)),
            optimizer=OptimizerSettings(lr=0.1 + 0.2, min_lr=1e-300, betas=(0.9, 0.999)),
            run=RunSettings(out="~/a b", steps=10**6, batch_size=2, log=("wandb",)),
            lora=LoraSettings(rank=3, alpha=1.5, targets=("experts",)),
            eval=EvalSettings(task="sudoku", every=3),
            held_out=HeldOutSettings(every=5, files=("h.parquet",), patience=2, samples=0),
        ),
    ],
)
def test_recipe_that_was_written_reads_as_the_same(tmp_path, recipe):
    write_recipe(recipe, tmp_path / "new" / "recipe.toml", "Two\nlines")
    assert load(tmp_path / "new" / "recipe.toml") == recipe


@pytest.mark.parametrize(
    ("setting", "message"),
    [("reweighted", "reweighted was removed"), ("leave_one_out", "leave_one_out was removed"), ("los", "unknown")],
)
def test_a_setting_that_a_recipe_cannot_have_is_named(tmp_path, setting, message):
    path = tmp_path / "recipe.toml"
    write_recipe(PLAIN, path, "")
    path.write_text(path.read_text().replace("[objective]", f"[objective]\n{setting} = true"))
    with pytest.raises(InputError, match=rf"recipe.toml: \[objective\] .*{message}"):
        load(path)
