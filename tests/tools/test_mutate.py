"""The mutation run: its mutants, what is drawn again after an interruption, and its table."""

import ast
import json
import os
import shutil
import subprocess
import sys

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
def results(tmp_path, monkeypatch):
    """All mutants of the source above, in a directory with results."""
    monkeypatch.setattr(mutate, "mutants", lambda root: MUTANTS)  # those of the repository are thousands
    mutate.draw(tmp_path / "out", MUTANTS, seed=0, count=100)
    return mutate.Results(tmp_path / "out")


def test_a_seed_draws_the_same_mutants(tmp_path):
    drawn = []
    for name in ("first", "again"):
        mutate.draw(tmp_path / name, MUTANTS, seed=1, count=3)
        drawn.append((tmp_path / name / "drawn.json").read_text())
    assert drawn[0] == drawn[1] and len(json.loads(drawn[0])) == 3


def test_an_interrupted_run_continues_and_its_table_has_every_mutant(results):
    left = [None, None]  # runs of the tests until the interruption

    def first_failure(mutant, tests):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return "" if mutant.kind == "keyword dropped" else "tests/test_f.py::test_it"

    with pytest.raises(KeyboardInterrupt):
        mutate.try_files(results, "gesso", ["tests/test_f.py"], first_failure)
    left.extend([None] * 6)
    mutate.try_files(results, "gesso", ["tests/test_f.py"], first_failure)
    assert not left, "no mutant was tried twice"
    assert len({verdict.key for verdict in results.verdicts()}) == 6
    table = list(mutate.table(results))
    assert sum("**survived** | 1 |" in line for line in table) == 2
    assert table[-1] == "- all: 6 caught, 2 survived, 0 not reached: 75.0 %"


COUNTER = """
class Counter:
    @property
    def next(self):
        return 1 + 1

    @staticmethod
    def is_low(value):
        return value < 5
"""
TESTS = """
import subprocess
import sys

import pytest

from gesso.request.counter import Counter


def test_next():
    assert Counter().next == 2


def test_low():
    assert Counter.is_low(4)


@pytest.fixture(scope="module")
def process():
    code = "from gesso.request.counter import Counter\\nwhile input(): print(Counter.is_low(5), flush=True)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as running:
        yield running
        running.kill()


def test_high(process):
    process.stdin.write("?\\n")
    process.stdin.flush()
    assert process.stdout.readline() == "False\\n"
"""


def test_mutants_are_caught_by_tests_of_their_line_in_forks_and_in_processes_of_a_fixture(tmp_path):
    root, out = tmp_path / "root", tmp_path / "out"
    for source in mutate.SOURCES:
        (root / source).parent.mkdir(parents=True, exist_ok=True)
        (root / source).touch() if source.endswith(".py") else (root / source).mkdir()
    (root / "gesso" / "__init__.py").touch()
    (root / "gesso" / "request" / "counter.py").write_text(COUNTER)
    (root / "tests").mkdir()
    (root / "tests" / "test_counter.py").write_text(TESTS)
    shutil.copytree(mutate.ROOT / "tools", root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    made = mutate.mutants_of(COUNTER.encode(), "gesso/request/counter.py")
    mutate.draw(out, made, seed=0, count=100)
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    command = [sys.executable, "-m", "tools.mutate", "forks", str(out), "tests"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    verdicts = [json.loads(line) for line in (out / "verdicts.jsonl").read_text().splitlines()]
    caught = {(verdict["key"].split(": ")[1], verdict["caught_by"].partition("::")[2]) for verdict in verdicts}
    assert caught == {
        ("one more", "test_next"), ("one less", "test_next"), ("constant returned", "test_next"),
        ("one less", "test_low"), ("comparison flipped", "test_low"), ("constant returned", "test_low"),
        ("one more", "test_high"),
    }, done.stderr  # fmt: skip
    # Of two equal numbers in a line, the first one counts.
    assert len(verdicts) == len({mutant.key for mutant in made})
