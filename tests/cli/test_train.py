"""The commands around training: `gesso train` and `gesso eval`, as they are typed."""

import json
import shutil
from pathlib import Path

import pytest

from gesso.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """The README's recipe, cut to three steps, in a directory of its own."""
    shutil.copytree(EXAMPLES / "overfit", tmp_path / "examples" / "overfit")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "examples" / "overfit" / "overfit.toml"
    text = path.read_text().replace("steps = 40", "steps = 3").replace("save_every = 20", "save_every = 2")
    path.write_text(text)
    return path


def test_a_look_at_the_data_trains_nothing(recipe, tmp_path, capsys):
    assert main(["train", str(recipe), "--check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["good"], report["rejected"]) == (4, 4, [])
    assert main(["train", str(recipe), "--check"]) == 0
    assert "« Paris.<eos>»" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_bad_rows_are_shown_with_their_lines(recipe, tmp_path, capsys):
    rows = tmp_path / "examples" / "overfit" / "overfit.jsonl"
    rows.write_text(rows.read_text() + "not json\n" + json.dumps({"prompt": "x", "completion": ""}) + "\n")
    assert main(["train", str(recipe), "--check"]) == 0
    shown = capsys.readouterr().out
    assert "overfit.jsonl:5" in shown
    assert "overfit.jsonl:6" in shown
    assert main(["train", str(recipe)]) == 2, "training itself stops, as the recipe says"
    assert "overfit.jsonl:5" in capsys.readouterr().err


def test_a_recipe_trains_and_what_it_leaves_is_a_model(recipe, tmp_path, capsys):
    assert main(["train", str(recipe)]) == 0
    assert main(["train", str(recipe)]) == 0, "run again, there is nothing left to do"
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
        "--t-max",
        "0.5",
        "--t-min",
        "0.25",
        "--entropy-bound",
        "0.2",
        "--plot",
        str(plot),
        "--json",
    ]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert [evaluation["settings"]["steps"] for evaluation in found] == [1, 2]
    chosen = [found[0]["settings"][name] for name in ("t_max", "t_min", "entropy_bound")]
    assert chosen == [0.5, 0.25, 0.2]
    assert found[0]["fingerprint"] == found[1]["fingerprint"], "the same items under both limits"
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
def test_what_cannot_be_done_is_said_in_one_line(command, word, capsys):
    assert main(command) == 2
    assert word in capsys.readouterr().err
