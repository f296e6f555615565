"""`gesso train` and `gesso eval` on the command line."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gesso.cli.main import main
from gesso.cli.train_summary import asks
from gesso.train.recipe import EvalSettings, load

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """The README's recipe with three steps, in a temporary directory."""
    shutil.copytree(EXAMPLES / "overfit", tmp_path / "examples" / "overfit")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "examples" / "overfit" / "overfit.toml"
    text = path.read_text().replace("steps = 40", "steps = 3").replace("save_every = 20", "save_every = 2")
    path.write_text(text)
    return path


def test_train_check_reports_without_training(recipe, tmp_path, capsys):
    assert main(["train", str(recipe), "--check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["good"], report["rejected"]) == (4, 4, [])
    assert main(["train", str(recipe), "--check"]) == 0
    assert "« Paris.<eos>»" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_train_reports_bad_rows_with_their_lines(recipe, tmp_path, capsys):
    rows = tmp_path / "examples" / "overfit" / "overfit.jsonl"
    rows.write_text(rows.read_text() + "not json\n" + json.dumps({"prompt": "x", "completion": ""}) + "\n")
    assert main(["train", str(recipe), "--check"]) == 0
    shown = capsys.readouterr().out
    assert "overfit.jsonl:5" in shown
    assert "overfit.jsonl:6" in shown
    assert main(["train", str(recipe)]) == 2, "the recipe has on_bad_row = stop"
    assert "overfit.jsonl:5" in capsys.readouterr().err


def test_suggested_command_asks_in_the_form_of_the_rows(recipe, tmp_path, capsys):
    assert main(["train", str(recipe)]) == 0
    out = capsys.readouterr().out
    command = next(line for line in out.splitlines() if line.startswith("generate"))
    assert command == "generate gesso generate 'The capital of France is' -m runs/overfit/model"
    assert "gesso chat" not in out and "serve    gesso serve -m runs/overfit/model" in out
    arguments = shlex.split(command)[2:]
    assert main([*arguments, "--max-new-tokens", "4", "--steps", "1"]) == 0, "the command works as it is"


@pytest.mark.parametrize(
    ("rows", "command"),
    [
        (['{"text": "import os\\nimport sys"}'], ["generate", "import os"]),
        (["not json", '{"prompt": "1: ", "completion": "one"}'], ["generate", "1: "]),
        (['{"prompt": "-v", "completion": "one"}'], ["generate", "PROMPT"]),
        (['{"prompt": "a\\nb", "completion": "one"}'], ["generate", "PROMPT"]),
        (['{"instruction": "Why?", "output": "So."}'], ["chat"]),
    ],
)
def test_form_of_the_first_usable_row_decides_the_command(recipe, tmp_path, rows, command):
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    read = load(recipe)
    assert asks(replace(read, data=replace(read.data, files=("rows.jsonl",)))) == command


def test_source_of_examples_is_evaluated_or_continued(recipe):
    read = load(recipe)
    made = replace(read, data=replace(read.data, source="examples.sudoku.source:SudokuSource"))
    assert asks(made) == ["generate", "PROMPT"]
    assert asks(replace(made, eval=EvalSettings(task="sudoku", every=5))) == ["eval", "sudoku"]


def test_trained_model_can_be_evaluated(recipe, tmp_path, capsys):
    assert main(["train", str(recipe)]) == 0
    assert main(["train", str(recipe)]) == 0, "a finished run can be run again"
    model = str(tmp_path / "runs" / "overfit" / "model")
    capsys.readouterr()
    plot = tmp_path / "accuracy.svg"
    command = [
        "eval",
        "sudoku",
        "-m",
        model,
        "--count",
        "2",
        "--steps",
        "1",
        "--steps",
        "2",
        "--set",
        "t_max=0.5",
        "--set",
        "t_min=0.25",
        "--set",
        "entropy_bound=0.2",
        "--plot",
        str(plot),
        "--json",
    ]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert [evaluation["settings"]["steps"] for evaluation in found] == [1, 2]
    chosen = [found[0]["settings"][name] for name in ("t_max", "t_min", "entropy_bound")]
    assert chosen == [0.5, 0.25, 0.2]
    assert found[0]["fingerprint"] == found[1]["fingerprint"], "the same items for both settings"
    assert plot.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (["train", "nowhere.toml"], "nowhere.toml"),
        (["eval", "chess"], "chess"),
        (["eval", "sudoku", "--split", "dev"], "dev"),
        (["bench", "everything"], "everything"),
    ],
)
def test_invalid_arguments_are_exit_code_2(command, word, capsys):
    assert main(command) == 2
    assert word in capsys.readouterr().err
