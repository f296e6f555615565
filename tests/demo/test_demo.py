"""`gesso demo`: its commands and its exit code. `test_dockerfile.py` runs it from an installed wheel."""

import shlex
from types import SimpleNamespace

import pytest
import typer

from gesso.cli import demo
from gesso.demo import EXAMPLES, FILES, DemoExample


def test_a_path_is_relative_to_the_working_directory_if_the_file_is_below_it(tmp_path, monkeypatch):
    infill = EXAMPLES[2]
    monkeypatch.chdir(FILES.parents[1])
    assert infill.command == "gesso infill gesso/demo/point.txt --seed 1"
    monkeypatch.chdir(tmp_path)
    assert shlex.split(infill.command)[2] == str(FILES / "point.txt")


def test_the_demo_stops_at_an_example_that_fails(main, monkeypatch):
    wrong = DemoExample(title="A wrong puzzle", arguments=("sudoku", "12"), seed=1, answer="")
    monkeypatch.setattr(demo, "EXAMPLES", [wrong, wrong])  # the real ones succeed
    done = main("demo")
    assert done.code == 2
    assert "1/2  A wrong puzzle\n$ gesso sudoku 12 --seed 1\n" in done.out
    assert "2/2" not in done.out


def test_the_exit_code_of_an_example_is_that_of_the_demo():
    unsolved = SimpleNamespace(main=lambda **_: 1)
    context = SimpleNamespace(find_root=lambda: SimpleNamespace(command=unsolved))
    with pytest.raises(typer.Exit) as exit:
        demo.demo(context)
    assert exit.value.exit_code == 1
