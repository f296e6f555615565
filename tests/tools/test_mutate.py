"""The mutation run: its mutants, what is drawn again after an interruption, and its table."""

import ast
import json

import pytest

from tools import mutate

SOURCE = b'''
LIMIT = 3

def f(a, b):
    """A docstring with 7."""
    if a < b:
        return g(a, key=1, other=f"{a:>3}")
    return not b and True
'''
MUTANTS = mutate.mutants_of(SOURCE, "gesso/f.py")


def test_every_kind_of_change_is_made_once_within_functions():
    made = [(mutant.line, mutant.kind, mutant.before, mutant.after) for mutant in mutate.mutants_of(SOURCE, "f.py")]
    call = 'g(a, key=1, other=f"{a:>3}")'
    assert sorted(made) == [
        (6, "comparison flipped", "a < b", "(a >= b)"),
        (7, "constant returned", call, "(None)"),
        (7, "keyword dropped", call, "(g(a, key=1))"),
        (7, "keyword dropped", call, "(g(a, other=f'{a:>3}'))"),
        (7, "one less", "1", "(0)"),
        (7, "one more", "1", "(2)"),
        (8, "constant returned", "not b and True", "(None)"),
        (8, "negated", "True", "(False)"),
    ]


def test_every_mutant_of_the_source_parses():
    mutants = mutate.mutants(mutate.ROOT)
    assert len(mutants) > 5000
    for mutant in mutants[::200]:
        source = (mutate.ROOT / mutant.file).read_bytes()
        ast.parse(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])


@pytest.fixture
def directory(tmp_path):
    """A directory with the recorded lines of tests of one file."""
    lines = tmp_path / "out" / "lines"
    lines.mkdir(parents=True)
    tests = [
        {"test": "tests/test_slow.py::test_a", "seconds": 9.0, "lines": {"gesso/f.py": [6, 7]}},
        {"test": "tests/test_fast.py::test_b", "seconds": 0.1, "lines": {"gesso/f.py": [6]}},
        {"test": "tests/test_server.py", "seconds": 0.0, "lines": {"gesso/f.py": [6]}},
    ]
    (lines / "1.jsonl").write_text("".join(json.dumps(test) + "\n" for test in tests))
    return tmp_path / "out"


def test_lines_that_no_test_executes_are_not_drawn_and_short_tests_come_first(directory):
    drawn, recorded = mutate.drawn(directory, MUTANTS, seed=0, count=100)
    assert {mutant.line for mutant in drawn} == {6, 7}
    (first,) = (mutant for mutant in drawn if mutant.line == 6)
    assert recorded.of(first) == ["tests/test_fast.py::test_b", "tests/test_slow.py::test_a", "tests/test_server.py"]
    first, again = (mutate.drawn(directory, MUTANTS, seed=0, count=3)[0] for _ in range(2))
    assert first == again


def test_an_interrupted_run_continues_and_its_table_has_every_verdict(directory):
    left = [None, None]  # verdicts until the interruption

    def judge(tree, mutant, tests):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        caught_by = "" if mutant.kind == "keyword dropped" else tests[0]
        return mutate.Verdict(key=mutant.key, line=mutant.line, caught_by=caught_by, tests=len(tests), seconds=1.0)

    with pytest.raises(KeyboardInterrupt):
        mutate.run(directory, MUTANTS, seed=0, count=100, judge=judge)
    first = mutate.verdicts(directory)
    left.extend([None] * 100)
    mutate.run(directory, MUTANTS, seed=0, count=100, judge=judge)
    verdicts = mutate.verdicts(directory)
    assert len(first) == 2 and verdicts[:2] == first
    assert len({verdict.key for verdict in verdicts}) == len(verdicts) == 6
    table = list(mutate.table(directory))
    assert sum("**survived**" in line for line in table) == 2
    assert table[-1] == "- all: 4 of 6 (67 %)"
