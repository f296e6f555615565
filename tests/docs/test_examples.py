"""`make demo` and the quickstart show the same four examples, and their answers are right."""

import re

import pytest

from examples.demo import __main__ as demo
from examples.demo.commands import EXAMPLES, Example, answer
from tests.docs.pages import ROOT, code_blocks


@pytest.mark.parametrize("example", EXAMPLES, ids=["sudoku", "picture", "infill", "tool call"])
def test_a_command_of_the_demo_gives_the_right_answer(example, own_cache, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert answer(example.command) == example.answer.strip()


def test_the_quickstart_shows_the_commands_of_the_demo_and_their_answers():
    shown = [block.partition("\n") for block in code_blocks("docs/quickstart.md", "console")]
    assert [command for command, _, _ in shown] == [f"$ {example.command}" for example in EXAMPLES]
    for (_, _, output), example in zip(shown, EXAMPLES, strict=True):
        # A terminal shows a grid in nine lines, the grid in a picture before it, and a line about the run after it.
        assert _without_space(example.answer) in _without_space(output)


def test_the_demo_stops_at_an_example_that_fails(monkeypatch, capsys):
    monkeypatch.setattr(demo, "run", lambda command: int("infill" in command))
    assert demo.demo() == 1
    assert "3/4" in capsys.readouterr().out


def test_the_check_names_a_wrong_answer_and_the_seeds_that_are_right(monkeypatch, capsys):
    monkeypatch.setattr("examples.demo.commands.answer", lambda command: "good" if "--seed 3" in command else "bad")
    monkeypatch.setattr(demo, "answer", lambda command: "bad")
    monkeypatch.setattr(demo, "EXAMPLES", [Example("A title", "gesso x --seed 1", "good")])
    assert demo.check() == 1
    printed = capsys.readouterr().out
    assert "WRONG  gesso x --seed 1" in printed
    assert "right with seeds 3" in printed


def _without_space(text: str) -> str:
    return re.sub(r"\s", "", text)
