"""`gesso distill`: from prompts to recorded runs to a model or an adapter."""

import json
from pathlib import Path

import pytest

from gesso.cli.main import main
from gesso.train.recipe import load
from tests.distill.conftest import short  # noqa: F401 (a fixture)
from tests.train.test_trainer import losses

FEW = ["--count", "3", "--max-new-tokens", "16", "--denoising-steps", "3", "--steps", "2", "--batch-size", "4"]


@pytest.fixture
def command(tmp_path, short, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    return ["distill", "--task", "structured", "-m", str(short), "--accept", "none", *FEW]


def test_a_task_gives_runs_a_recipe_a_model_and_the_next_commands(command, short, capsys):  # noqa: F811
    assert main([*command, "--out", "whole"]) == 0
    out, err = capsys.readouterr()
    assert "runs     3 recorded in whole/trajectories, 3 accepted (none), 3.0 steps per canvas" in err
    assert "step 2/2 · loss" in err and "chat     gesso chat -m whole/model" in out
    files = {path.name for path in Path("whole").iterdir()}
    assert files >= {"trajectories", "model", "recipe.toml", "loss.svg", "metrics.jsonl"}
    assert json.loads(Path("whole/model/config.json").read_text())["canvas_length"] == 16
    # The same command continues: nothing is recorded or trained again.
    before = losses("whole")
    assert main([*command, "--out", "whole"]) == 0 and losses("whole") == before

    # The control trains as often on the same recording.
    control = ["distill", "--trajectories", "whole/trajectories", "-m", str(short), "--steps", "2", "--batch-size", "4"]
    assert main([*control, "--out", "control", "--objective", "ordinary", "--lora", "2"]) == 0
    quantized = ["--quantize", "int4", "--lora", "2", "--targets", "attention,mlp,experts"]
    assert main([*control, "--out", "quantized", *quantized]) == 0 and Path("quantized/adapter").is_dir()
    recipe = load(Path("control/recipe.toml"))
    assert recipe.distill.objective == "ordinary" and recipe.lora.rank == 2 and Path("control/adapter").is_dir()
    assert recipe.data.files == ("whole/trajectories/rows.jsonl",)
    assert losses("control") != before

    # The recipe repeats the training.
    text = Path("whole/recipe.toml").read_text()
    Path("again.toml").write_text(text.replace('out = "whole"', 'out = "again"'))
    assert main(["distill", "again.toml"]) == 0 and losses("again") == before
    assert main([*command, "--out", "whole", "--seed", "1"]) == 2
    assert "recorded with different settings (seed)" in capsys.readouterr().err


def test_rows_of_your_own_are_prompts_and_ordinary_rows(command, capsys):
    Path("rows.jsonl").write_text("".join(f'{{"prompt": "{i}: ", "completion": "yes"}}\n' for i in range(3)))
    own = ["distill", "--data", "rows.jsonl", *command[3:5], *FEW[2:]]
    assert main([*own, "--trajectories", "runs", "--record-only"]) == 0
    assert "3 recorded in runs" in capsys.readouterr().err and not Path("out").exists()
    assert main([*own, "--trajectories", "runs", "--out", "out"]) == 0
    assert load(Path("out/recipe.toml")).data.files == ("rows.jsonl",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["--data", "rows.jsonl", "--out", "x"], "not both"),
        ([], "give --out"),
        (["--out", "x", "--accept", "all"], "--accept must be one of"),
        (["--out", "x", "--trajectories", "a", "--trajectories", "b"], "into one directory"),
        (["--out", "x", "--minutes", "0"], "the same command continues"),
        (["plain.toml"], "--model is for a run without a recipe"),
    ],
)
def test_unusable_commands_say_what_to_do(command, capsys, changes, words):
    Path("plain.toml").write_text(
        '[data]\nfiles = ["rows.jsonl"]\nmax_length = 8\n[run]\nout = "x"\nsteps = 1\nbatch_size = 1\n'
    )
    code = main([*command, *changes])
    out, err = capsys.readouterr()
    assert main(["distill", "plain.toml"]) == 2 and "no [distill] section" in capsys.readouterr().err
    assert words in out + err and code == (0 if "continues" in words else 2)
