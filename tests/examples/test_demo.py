"""`gesso demo` and the quickstart show the same four examples, and their answers are right."""

import re

import pytest

from examples.demo import check
from gesso.demo import EXAMPLES, DemoExample
from tests.docs.pages import ROOT, code_blocks


@pytest.mark.parametrize("example", EXAMPLES, ids=["sudoku", "picture", "infill", "tool call"])
def test_an_example_of_the_demo_gives_the_right_answer(example, own_cache, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert check.answer(example) == example.answer.strip()


def test_the_quickstart_shows_the_commands_of_the_demo_and_their_answers(monkeypatch):
    monkeypatch.chdir(ROOT)
    shown = [block.partition("\n") for block in code_blocks("docs/quickstart.md", "console")]
    assert [command for command, _, _ in shown] == [f"$ {example.command}" for example in EXAMPLES]
    for (_, _, output), example in zip(shown, EXAMPLES, strict=True):
        # A terminal shows a grid in nine lines, the grid in a picture before it, and a line about the run after it.
        assert _without_space(example.answer) in _without_space(output)


def test_the_check_names_a_wrong_answer_and_the_seeds_that_are_right(monkeypatch, capsys):
    # The real answers are right.
    monkeypatch.setattr(check, "answer", lambda example: "good" if example.seed == 3 else "bad")
    assert check.check([DemoExample(title="A title", arguments=("x",), seed=1, answer="good")]) == 1
    printed = capsys.readouterr().out
    assert "WRONG  gesso x --seed 1" in printed
    assert "right with seeds 3" in printed


def _without_space(text: str) -> str:
    return re.sub(r"\s", "", text)
