"""The table of all samplers and stopping rules."""

import json
import random

import pytest

import gesso
from examples.samplers import rules, table
from gesso.eval.evaluate import Evaluation, Outcome, fingerprint
from gesso.settings import SAMPLERS, STOPPINGS


def faked(g, task, items, *, seed, **settings) -> Evaluation:
    """Return an evaluation in which argmax takes half the passes and ancestral answers nothing."""
    names = {rule: name for name, rule in rules.SAMPLERS.items()}
    sampler = names.get(settings.get("sampler"), "entropy-bound")
    if sampler == "ddim":
        raise gesso.InputError("not here")
    outcomes = []
    for item in items:
        luck = random.Random(item.name).random()
        score = float(luck < 0.8 and sampler != "ancestral")
        steps = round((5 if sampler == "argmax" else 10) + 3 * luck)
        error = "broken" if sampler == "ancestral" and luck < 0.2 else None
        outcomes.append(Outcome(name=item.name, seed=0, expected="", scores={"exact": score}, seconds=0, error=error,
                                denoising_steps=steps))  # fmt: skip
    chosen = {"sampler": sampler, "stopping": str(settings.get("stopping", "stable"))}
    return Evaluation(task=task.name, data={}, fingerprint=fingerprint(items), model={}, settings=chosen, seed=seed,
                      seconds=1.0, outcomes=tuple(outcomes))  # fmt: skip


@pytest.fixture
def calls(monkeypatch):
    made = []

    def evaluate(*arguments, **options):
        made.append(options.get("sampler"))
        return faked(*arguments, **options)

    monkeypatch.setattr(table, "evaluate", evaluate)  # the real table takes hours
    return made


def test_rows_have_every_sampler_and_stopping_rule():
    assert {*SAMPLERS, *rules.SAMPLERS} < table.ROWS.keys()
    assert {f"stopping {name}" for name in (*STOPPINGS, *rules.STOPPINGS)} < table.ROWS.keys()


def test_the_table_compares_all_rows_with_the_default_and_continues(calls, tmp_path, capsys):
    table.main(["--out", str(tmp_path), "--count", "200", "--task", "structured"])
    assert "ddim left out: not here" in capsys.readouterr().err
    found = json.loads((tmp_path / "table.json").read_text())["structured"]
    # The default's own sampler and stopping rule are not measured twice.
    assert found.keys() == table.ROWS.keys() - {"ddim", "entropy-bound", "stopping stable"}
    assert found["argmax"]["is_better"] and not found["ancestral"]["is_better"] and not found["default"]["is_better"]
    text = (tmp_path / "table.md").read_text()
    assert "Better than the default on every task: `argmax`." in text
    assert "`default` (entropy-bound, stable)" in text and "failed" in text
    count = len(calls)
    table.main(["--out", str(tmp_path), "--count", "200", "--task", "structured"])
    assert len(calls) == count + 1  # only the one that failed is tried again
    table.main(["--out", str(tmp_path), "--count", "201", "--task", "structured", "--row", "argmax"])
    assert len(calls) == count + 3  # other items: default and argmax
    cell = json.loads((tmp_path / "structured" / "argmax.json").read_text())
    assert len(cell[0]["items"]) == 201


def test_generated_puzzles_are_made_once(tmp_path, monkeypatch):
    column = table.Column("sudoku", table.Sudoku(clues=(40, 40)), "gesso-sudoku")
    made = table.stored_items(column, tmp_path, 2, 0)
    # Equal puzzles would be made again unseen.
    monkeypatch.setattr(table.Sudoku, "items", lambda *_: pytest.fail("made them again"))
    assert table.stored_items(column, tmp_path, 2, 0) == made
    assert fingerprint(table.stored_items(column, tmp_path, 2, 0)) == fingerprint(made)
