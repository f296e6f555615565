"""The last lines of `gesso train`: what to use, or what to change."""

from dataclasses import replace
from pathlib import Path

import pytest

from gesso.adapters import LoraSettings
from gesso.cli.train_summary import summary
from gesso.train.learned import Learned
from gesso.train.recipe import (
    DataSettings,
    HeldOutSettings,
    ModelSettings,
    ObjectiveSettings,
    OptimizerSettings,
    Recipe,
    RunSettings,
)


@pytest.fixture
def recipe(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    return Recipe(
        model=ModelSettings(),
        data=DataSettings(files=(str(rows),), max_length=64),
        objective=ObjectiveSettings(),
        optimizer=OptimizerSettings(),
        run=RunSettings(out=str(tmp_path), steps=40, batch_size=1),
        lora=LoraSettings(rank=1, alpha=2.0, targets=("mlp",)),
    )


def lines(recipe, losses=(), learned=None, steps=40):
    metrics = [{"step": 10 * number, "held_out": loss} for number, loss in enumerate(losses, start=1)]
    text = summary(recipe, Path(recipe.run.out), metrics or [{"step": steps}], learned)
    return {line[:8].strip(): line[9:] for line in text}


def learned(exact, **changes):
    return replace(Learned(exact=exact, tried=40, ambiguous=0), **changes)


def test_a_loss_that_only_rises_is_named_with_a_remedy_and_no_chat(recipe):
    recipe = replace(recipe, held_out=HeldOutSettings(every=10, patience=3))
    shown = lines(recipe, (2.88, 3.1, 3.5, 3.82))
    assert shown["held out"].startswith("the loss only rose, from 2.88 at step 10 to 3.82 at step 40")
    assert "--held-out none" in shown["change"]
    assert not {"chat", "serve"} & set(shown)


def test_a_loss_that_fell_first_leads_to_a_chat(recipe):
    shown = lines(replace(recipe, held_out=HeldOutSettings(every=10, patience=3)), (3.0, 2.0, 2.5, 2.6))
    assert {"chat", "serve"} <= set(shown) and not {"held out", "change"} & set(shown)


@pytest.mark.parametrize(("exact", "chat", "change"), [(40, True, False), (30, True, True), (10, False, True)])
def test_rows_learned_decide_about_the_next_commands(recipe, exact, chat, change):
    shown = lines(recipe, learned=learned(exact))
    assert shown["learned"].startswith(f"{exact} of 40 rows")
    assert ("chat" in shown, "change" in shown) == (chat, change)


def test_contradictory_rows_are_named_before_longer_training(recipe):
    shown = lines(recipe, learned=learned(1, ambiguous=40, example="Draw a card."))
    assert "40 rows share their question" in shown["change"] and "'Draw a card.'" in shown["change"]
    assert "--steps 80" in lines(recipe, learned=learned(1))["change"]


def test_a_run_that_is_not_finished_is_not_judged(recipe):
    shown = lines(recipe, learned=learned(0), steps=20)
    assert "the same command continues" in shown["stopped"] and "chat" in shown and "learned" not in shown
