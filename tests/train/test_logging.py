"""Metrics are sent to TensorBoard and Weights & Biases, and a missing package is named."""

import sys
from types import SimpleNamespace

import pytest

from gesso.errors import InputError
from gesso.train.metrics import MetricsLog, read_metrics
from gesso.train.recipe import RunSettings

LINE = {"step": 1, "loss": 2.0}


def test_metrics_are_written_to_tensorboard(tmp_path):
    log = MetricsLog(tmp_path, ["tensorboard"], 1, {}, 0)
    log.append(LINE)
    log.close()
    (file,) = (tmp_path / "tensorboard").glob("events.out.*")
    assert b"loss" in file.read_bytes()


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for the package, with the runs that were begun."""
    runs = []

    def init(**settings):
        run = SimpleNamespace(settings=settings, logged=[], finished=False)
        run.log = lambda metrics, step: run.logged.append((step, metrics))
        run.finish = lambda: setattr(run, "finished", True)
        runs.append(run)
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    return runs


def test_metrics_are_sent_to_wandb_and_a_resumed_run_continues(tmp_path, wandb):
    for first in (1, 5):
        log = MetricsLog(tmp_path / "faq", ["wandb"], 2, {"optimizer": {"lr": 1e-3}}, first - 1)
        (tmp_path / "faq").mkdir(exist_ok=True)
        for step in range(first, first + 4):
            log.append({**LINE, "step": step, **({"held_out": 1.0} if step == 3 else {})})
        log.close()
    one, other = wandb
    assert one.settings["name"] == "faq" and one.settings["config"] == {"optimizer": {"lr": 1e-3}}
    assert one.settings["id"] == other.settings["id"] and one.settings["resume"] == "allow"
    assert [step for step, _ in one.logged] == [2, 3, 4], "every second step, and each held-out loss"
    assert one.finished and other.finished
    assert len(read_metrics(tmp_path / "faq")) == 8, "the file has every step"


@pytest.mark.parametrize(
    ("name", "module", "command"),
    [
        ("wandb", "wandb", "pip install wandb"),
        ("tensorboard", "torch.utils.tensorboard", r"pip install 'gesso-lm\[train\]'"),
    ],
)
def test_missing_package_is_named_with_the_command_to_install_it(tmp_path, monkeypatch, name, module, command):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=f"logging to {name} needs the package {name}: {command}"):
        MetricsLog(tmp_path, [name], 1, {}, 0)


def test_unknown_log_is_rejected():
    with pytest.raises(InputError, match="log must be a list of tensorboard, wandb, got"):
        RunSettings(out="a", steps=1, batch_size=1, log=("paper",))
