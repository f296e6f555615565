"""Properties of every task."""

import json
import re
import sys

import pytest

from gesso import InputError
from gesso.eval import TASKS, task
from gesso.eval.task import SPLITS, split_of


@pytest.mark.parametrize("name", TASKS)
def test_items_depend_on_split_and_seed_and_a_larger_count_only_adds(name):
    subject = task(name)
    first, again, more = (list(subject.items("test", count, seed=7)) for count in (3, 3, 5))
    assert first == again == more[:3]
    assert len({item.name for item in more}) == 5
    assert list(subject.items("test", 3, seed=8)) != first
    assert {*(str(i.prompt) for i in first)}.isdisjoint(str(i.prompt) for i in subject.items("validation", 3, seed=7))
    for item in first:
        assert subject.score(item, item.expected) == dict.fromkeys(subject.scores, 1.0)


def test_invalid_tasks_splits_and_options_are_rejected():
    with pytest.raises(InputError, match="unknown task 'chess'; expected sudoku, python_infill"):
        task("chess")
    with pytest.raises(InputError, match="task sudoku: .*colour"):
        task("sudoku", colour="red")
    with pytest.raises(InputError, match="expected train, validation, test"):
        task("sudoku").items("dev", 1, seed=0)
    with pytest.raises(InputError, match="at least 1"):
        task("python_infill").items("test", 0, seed=0)
    with pytest.raises(InputError, match="read them from a file"):
        task("sudoku", clues=(17, 20))


def test_splits_have_the_documented_shares():
    shares = [split_of(f"name {i}") for i in range(5000)]
    assert [round(shares.count(split) / 5000, 1) for split in SPLITS] == [0.8, 0.1, 0.1]


@pytest.fixture
def reverse(monkeypatch, tmp_path, request):
    """Write the task of the guide, and return its name."""
    guide = (request.config.rootpath / "docs/guides/evaluation.md").read_text()
    (source,) = re.findall(r"```python\n(.*?class Reverse.*?)```", guide, re.DOTALL)
    (tmp_path / "reverse.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "reverse", raising=False)
    return "reverse:Reverse"


def test_a_task_of_your_own_runs_by_its_module_and_class(reverse, tiny_directory, main):
    settings = "--count", "2", "--steps", "2", "--json", "--device", "cpu"
    run = main("eval", reverse, "-m", str(tiny_directory), *settings)
    assert run.code == 0, run.err
    (found,) = json.loads(run.out)
    expected = [item.expected for item in task(reverse).items("test", 2, seed=0)]
    assert found["task"] == "reverse" and [item["expected"] for item in found["items"]] == expected


def test_a_task_of_your_own_takes_only_options_that_its_class_has(reverse, main):
    error = " ".join(main("eval", reverse, "--clues", "30").err.split())
    assert "--clues applies to sudoku; remove it for the task reverse:Reverse" in error
    with pytest.raises(InputError, match="below the current directory, such as examples.graphs.task:Graphs"):
        task("no_such_file:Task")
