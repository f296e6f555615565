"""Runs that are killed while they write, or whose disk is full: what is left, and how they continue."""

import itertools
import json
import os
import signal
import sys
from contextlib import ExitStack

import pytest

from gesso import GessoError
from gesso.files import locked
from gesso.train import state
from gesso.train.objective import Objective
from gesso.train.recipe import load
from gesso.train.run import train
from gesso.train.trainer import LOCK
from tests.full_disk import full_disk
from tests.other_process import other_process_with
from tests.train.conftest import make_small, watched, write_rows
from tests.train.forked import start, train_and_die
from tests.train.test_trainer import losses, write_recipe

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals and locks of POSIX")

# The files of a step are written by `save_file`: the weights, the moments of the optimizer and the average.
POINTS = {
    "first step": ("state", "save_file", 2),
    "removal of an old step": ("state", "discard", 1),
    "export": ("write", "write_companions", 1),
}


def hidden(directory):
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("."))


@pytest.fixture(scope="module")
def whole_losses(tmp_path_factory):
    """The losses of a run that nothing interrupts."""
    directory = tmp_path_factory.mktemp("whole")
    recipe = write_recipe(directory, write_rows(directory / "rows.jsonl"), make_small(directory / "small"))
    train(load(recipe), report=lambda _: None)
    return losses(directory / "out")


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_is_killed_while_writing_leaves_nothing_once_it_continues(
    tmp_path, rows, small, whole_losses, point
):
    recipe, out = write_recipe(tmp_path, rows, small, out="killed", extra="keep = 1\n"), tmp_path / "killed"
    process = start(train_and_die, recipe, *POINTS[point])
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert hidden(out), "the process was killed while it wrote"
    for step in out.glob("step-*"):
        assert state.read_note(step)["step"] == int(step.name.removeprefix("step-")), "a step is whole or not there"
    train(load(recipe), report=lambda _: None)
    assert hidden(out) == []
    assert losses(out) == whole_losses
    assert [step.name for step in out.glob("step-*")] == ["step-00000012"]
    assert (out / "model" / "config.json").is_file()


def test_two_processes_do_not_train_into_one_directory(tmp_path, rows, small):
    recipe, out = write_recipe(tmp_path, rows, small, steps=1), tmp_path / "out"
    out.mkdir()
    refused = r"another process is writing to .*out; wait for it, or stop it"
    with other_process_with(out / LOCK), pytest.raises(GessoError, match=refused):
        train(load(recipe), report=lambda _: None)
    train(load(recipe), report=lambda _: None)
    assert state.latest(out) and hidden(out) == []


def test_a_full_disk_is_one_line_with_the_last_good_step(main, tmp_path, rows, small, whole_losses):
    """A file can have at most 4 KiB from the fifth step on, after the first checkpoint."""
    recipe, out = write_recipe(tmp_path, rows, small, out="full"), tmp_path / "full"
    steps = itertools.count(1)
    with ExitStack() as stack:

        def fill(*_):
            if next(steps) == 5:
                stack.enter_context(full_disk(4096))

        stack.enter_context(watched(Objective, fill))
        done = main("train", str(recipe))
    assert done.code == 1
    *progress, error = done.err.splitlines()
    assert all(line.startswith(("step", "gesso: ")) for line in progress), "no traceback"
    assert f"the run in {out} cannot be written: File too large. Free some space; " in error
    assert f"the last good step is 4, in {out}/step-00000004: the same command continues" in error
    assert state.latest(out) == out / "step-00000004" and hidden(out) == []
    train(load(recipe), report=lambda _: None)
    assert losses(out) == whole_losses


def test_a_disk_that_is_full_before_the_first_step_is_saved(tmp_path):
    with (
        pytest.raises(GessoError, match="No space left on device. Free some space; no step is saved yet"),
        state.explained(tmp_path),
    ):
        raise OSError(28, os.strerror(28))


def test_other_errors_than_a_full_disk_stay_as_they_are(tmp_path):
    with pytest.raises(FileNotFoundError), state.explained(tmp_path):
        json.loads((tmp_path / "absent").read_text())


def test_a_lock_is_free_again_and_leaves_no_file(tmp_path):
    for _ in range(2):
        with locked(tmp_path / "lock") as is_locked:
            assert is_locked
    assert list(tmp_path.iterdir()) == []
