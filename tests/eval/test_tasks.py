"""Properties of every task."""

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
