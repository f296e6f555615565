"""The metrics of a run: the same steps in metrics.jsonl and TensorBoard, with and without steps in flight."""

import itertools
from dataclasses import replace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gesso.train import run, trainer
from gesso.train.optimizers import make_optimizers
from gesso.train.recipe import EvalSettings, load
from tests.train.test_trainer import losses, metrics, stop_after, write_recipe


@pytest.fixture
def recipe(tmp_path, rows, small):
    found = load(write_recipe(tmp_path, rows, small, steps=6))
    return replace(found, run=replace(found.run, log=("tensorboard",), log_every=2))


@pytest.fixture
def in_flight(monkeypatch):
    """Read the values of a step after the next one is launched, as on a GPU."""

    class Pipelined(trainer.Trainer):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.fused = True
            self.optimizers = make_optimizers(self.parameters, self.recipe.optimizer, fused=True)

    monkeypatch.setattr(trainer.PendingStep, "to_host", lambda self: self)  # a CPU has no copies in flight
    monkeypatch.setattr(run, "Trainer", Pipelined)  # only a GPU has steps in flight


def events(out):
    """Return the losses that TensorBoard shows, by step."""
    shown = EventAccumulator(str(out / "tensorboard"))
    shown.Reload()
    return {event.step: event.value for event in shown.Scalars("loss")}


def test_tensorboard_has_the_values_of_every_nth_step(tmp_path, recipe):
    run.train(recipe, lambda _: None)
    expected = {step: loss for step, loss, _ in losses(tmp_path / "out") if step % 2 == 0}
    assert events(tmp_path / "out") == pytest.approx(expected)


def test_steps_in_flight_are_logged_under_their_own_number(tmp_path, recipe, in_flight):
    scores = iter(range(1, 7))
    recipe = replace(recipe, eval=EvalSettings(task="sudoku", every=1))
    run.train(recipe, lambda _: None, score=lambda model: {"evaluation": next(scores)})
    assert [(line["step"], line["evaluation"]) for line in metrics(tmp_path / "out")] == [(n, n) for n in range(1, 7)]
    expected = {step: loss for step, loss, _ in losses(tmp_path / "out") if step % 2 == 0}
    assert events(tmp_path / "out") == pytest.approx(expected)


def test_a_resumed_run_hides_the_steps_that_it_repeats(tmp_path, recipe):
    recipe = replace(recipe, run=replace(recipe.run, save_every=3, log_every=1))
    stop_after(recipe, 4)  # logged, but after the last checkpoint
    run.train(recipe, lambda _: None)
    shown = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    shown.Reload()
    assert [event.step for event in shown.Scalars("loss")] == [1, 2, 3, 4, 5, 6]


def test_the_time_of_an_evaluation_counts_for_no_step(tmp_path, recipe, in_flight, monkeypatch):
    hours = 0
    readings = itertools.count()

    def an_hour(model):
        nonlocal hours
        hours += 1
        return {}

    # A second passes from one reading to the next, and an hour in each evaluation.
    monkeypatch.setattr(trainer.time, "perf_counter", lambda: 3600.0 * hours + next(readings))
    run.train(replace(recipe, eval=EvalSettings(task="sudoku", every=3)), lambda _: None, score=an_hour)
    assert min(line["tokens_per_second"] for line in metrics(tmp_path / "out")) > 1, "no step took an hour"
