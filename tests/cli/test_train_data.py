"""`gesso train --data`: from rows to an adapter that other commands use."""

import json
import shlex
from pathlib import Path

import pytest

from gesso.cli.main import main
from tests.train.conftest import small  # noqa: F401 (a fixture)
from tests.train.test_held_out import write
from tests.train.test_trainer import metrics


@pytest.fixture
def command(by_heart):
    """A short run on a tiny model with held-out rows, in a temporary directory."""
    return [*by_heart, "--held-out", "held.jsonl"]


@pytest.fixture
def by_heart(tmp_path, small, monkeypatch):  # noqa: F811
    """The same run without held-out rows."""
    monkeypatch.chdir(tmp_path)
    # By default, the answers that a run shows take 48 steps.
    (small / "generation_config.json").write_text('{"max_new_tokens": 16, "max_denoising_steps": 2}')
    write(tmp_path / "chats.jsonl", range(6))
    write(tmp_path / "held.jsonl", range(6, 10))
    command = ["train", "--data", "chats.jsonl", "-m", str(small), "--steps", "4", "--rank", "2"]
    return [*command, "--eval-every", "4"]


def test_data_gives_an_adapter_a_recipe_a_curve_and_the_next_commands(command, small, capsys):  # noqa: F811
    assert main(command) == 0
    out, err = capsys.readouterr()
    files = {path.name for path in Path("runs/chats").iterdir()}
    assert files >= {"adapter", "recipe.toml", "loss.svg", "metrics.jsonl", "samples.jsonl"}
    assert "data     6 rows to train on, 4 held out" in err and "step 4/4 · loss" in err and "  → " in err
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert lines["generate"].startswith("gesso generate '")
    assert lines["generate"].endswith(f"-m {small} --adapter runs/chats/adapter")
    assert lines["serve"] == f"gesso serve -m {small} --adapter chats=runs/chats/adapter"
    assert main([*shlex.split(lines["generate"])[1:], "--max-new-tokens", "4", "--no-live"]) == 0
    assert main(command) == 0, "a finished run can be run again"
    assert len(metrics("runs/chats")) == 4


def test_written_recipe_repeats_the_run_exactly(command):
    assert main(command) == 0
    recipe = Path("runs/chats/recipe.toml")
    Path("again.toml").write_text(recipe.read_text().replace('out = "runs/chats"', 'out = "runs/again"'))
    assert main(["train", "again.toml"]) == 0
    keys = ("step", "loss", "held_out")
    one, other = ([[line.get(key) for key in keys] for line in metrics(f"runs/{run}")] for run in ("chats", "again"))
    assert one == other
    weights = [Path("runs", run, "adapter", "adapter_model.safetensors").read_bytes() for run in ("chats", "again")]
    assert weights[0] == weights[1]


def test_run_out_of_time_says_how_to_continue(command, capsys):
    command = [*command, "--out", "runs/my.run"]
    assert main([*command, "--minutes", "0.00001"]) == 0
    out = capsys.readouterr().out
    assert "stopped  at step 1 of 4: the same command continues" in out
    assert "gesso serve" in out and "my-run=runs/my.run/adapter" in out
    assert main(command) == 0 and "stopped" not in capsys.readouterr().out


def test_rows_that_were_not_learned_lead_to_a_remedy_and_no_chat(by_heart, capsys):
    assert main(by_heart) == 0
    out, err = capsys.readouterr()
    assert "6 rows to train on, none held out" in err
    assert "learned  0 of 6 rows" in out and "--steps 8" in out and "gesso serve" not in out


def test_another_run_in_the_directory_keeps_its_recipe(command, capsys):
    assert main(command) == 0
    before = Path("runs/chats/recipe.toml").read_text()
    assert main([*command, "--rank", "3"]) == 2
    assert "contains a run with other settings" in capsys.readouterr().err
    assert Path("runs/chats/recipe.toml").read_text() == before


def test_check_reports_on_the_data_without_training(command, capsys):
    Path("more.json").write_text(json.dumps([{"instruction": "Why?", "output": "So."}, {"instruction": "Why?"}]))
    assert main([*command, "--data", "more.json", "--check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["good"]) == (8, 7)
    assert [(row["source"], row["line"]) for row in report["rejected"]] == [("more.json", 2)]
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give a recipe or --data FILE"),
        (["r.toml", "--data", "chats.jsonl"], "--data goes with --data"),
        (["r.toml", "--batch-size", "3"], "--batch-size goes with --data"),
        (["--data", "chats.txt"], "hub datasets as owner/name:split"),
        (["--data", "gone.jsonl"], "gone.jsonl: no such file"),
        (["--data", "chats.jsonl", "--targets", "heads"], "unknown adapter targets"),
        (["--data", "chats.jsonl", "--log", "paper"], "log must be a list of tensorboard, wandb"),
    ],
)
def test_unusable_options_are_exit_code_2(command, capsys, arguments, words):
    assert main(["train", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_model_of_the_environment_is_ignored_with_a_recipe(command, monkeypatch):
    Path("r.toml").write_text(
        '[data]\nfiles = ["chats.jsonl"]\nmax_length = 64\n[run]\nout = "a"\nsteps = 1\nbatch_size = 1'
    )
    monkeypatch.setenv("GESSO_MODEL", "nowhere")
    assert main(["train", "r.toml", "--check"]) == 0


def test_frozen_weights_may_be_quantized(command, capsys):
    assert main([*command, "--quantize", "int4", "--steps", "1"]) == 0
    assert "--quantize int4 --adapter" in capsys.readouterr().out
