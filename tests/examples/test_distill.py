"""The recipes for distillation, and the experiment that compares it with ordinary training."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from examples.distill import experiment
from gesso.train.recipe import load

RECIPES = sorted((Path(experiment.__file__).parent).glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_distill(path):
    recipe = load(path)
    assert recipe.distill is not None and round(recipe.distill.rows * recipe.run.batch_size) > 0
    assert (recipe.lora is None) == (recipe.model.quantize is None)


def test_the_control_differs_in_the_objective_only(tmp_path):
    distilled, control = (experiment.recipe_for(tmp_path, name, 40, 8) for name in ("distilled", "control"))
    assert (distilled.distill.objective, control.distill.objective) == ("trajectory", "ordinary")
    alike = replace(control, distill=distilled.distill, run=replace(control.run, out=distilled.run.out))
    assert alike == distilled and distilled.run.steps == 40


def test_a_line_compares_the_same_items_with_the_base_model(tmp_path):
    def store(name, scores, steps):
        items = [{"scores": {"fields": score}, "denoising_steps": steps} for score in scores]
        mean = {"fields": {"mean": sum(scores) / len(scores)}}
        found = {"items": items, "scores": mean, "denoising_steps": {"mean": steps}, "count": 4, "seconds": 1.0}
        (tmp_path / f"structured, {name}.json").write_text(json.dumps(found))

    store("own, base", [1, 1, 0, 1], 6.0)
    store("6 steps, distilled", [1, 0, 1, 1], 3.0)
    line = experiment._line(tmp_path, "structured", "6 steps", "distilled", "fields")
    assert line["steps_of_base"] == 0.5 and line["differences"]["fields"]["mean"] == 0
    assert line["differences"]["fields"]["low"] < -0.3
