"""A mutation run: whether some test fails if one place of the source is wrong.

    python -m tools.mutate draw /tmp/mutants --seed 0 --count 200
    python -m tools.mutate forks /tmp/mutants tests/engine          # continues where it was interrupted
    python -m tools.mutate files /tmp/mutants --of gesso/serve tests/serve/test_serve.py
    python -m tools.mutate table /tmp/mutants                       # as Markdown, with the share that was caught

A mutant is a copy of the source with one change: a comparison flipped, a number one larger or smaller, a condition
negated, a keyword of a call dropped, or a result replaced by a constant. `forks` runs the given tests, each once more
for every mutant of a line that it executes, until one fails: see `tools/forked_mutants.py`. `files` is for what forks
do not reach, such as the processes of a server: it runs the given tests, for each mutant that is left, in a copy of
the repository in which the file is changed. A test that hangs counts as failed. Several processes may share a
directory, which must be outside of the repository.

Mutants that no test can tell from the original are listed in `tools/equivalent_mutants.txt` with the reason; they are
drawn, but not counted.
"""

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    "gesso/model", "gesso/diffusion", "gesso/engine", "gesso/request", "gesso/serve", "gesso/constraints",
    "gesso/train/objective.py",
)  # fmt: skip
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
SECONDS = 900.0  # for the test files of one mutant
COPIED = ("gesso", "tests", "tools", "examples", "benchmarks", "docs", "pyproject.toml", "README.md")
NOT_REACHED, SURVIVED, CAUGHT = OUTCOMES = "not reached", "survived", "caught"
FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of the source: the text between two places is replaced."""

    file: str
    line: int  # from 1
    last_line: int
    context: str  # the line
    kind: str
    before: str
    after: str
    start: int  # offsets in the bytes of the file
    end: int

    @property
    def lines(self) -> set[int]:
        return set(range(self.line, self.last_line + 1))

    @property
    def key(self) -> str:
        """The name of the mutant in lists. It stays the same if lines are added above."""
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.file}: {self.kind}: {before} -> {after} in {self.context}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A mutant that was caught."""

    key: str
    caught_by: str  # a test; with (hang) if it did not end


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A test, or several files of tests, and the mutants with which it passed."""

    test: str
    passed: list[str]

    @property
    def function(self) -> str:
        """The test without its parameters."""
        return self.test.partition("[")[0]


# --- mutants ----------------------------------------------------------------------------------------------------------


def sources(root: Path) -> list[Path]:
    """Return the files that are mutated."""
    found = []
    for name in SOURCES:
        path = root / name
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


def mutants(root: Path) -> list[Mutant]:
    """Return every mutant, in the order of files and lines."""
    return [mutant for path in sources(root) for mutant in mutants_of(path.read_bytes(), str(path.relative_to(root)))]


def mutants_of(source: bytes, file: str) -> list[Mutant]:
    """Return the mutants of one file: of everything within functions."""
    lines = source.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    found = {}
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in (node for statement in function.body for node in _nodes(statement)):
            for target, kind, after in _changes(node):
                assert target.end_lineno is not None and target.end_col_offset is not None
                start = offsets[target.lineno - 1] + target.col_offset
                end = offsets[target.end_lineno - 1] + target.end_col_offset
                mutant = Mutant(
                    file=file,
                    line=target.lineno,
                    last_line=target.end_lineno,
                    context=lines[target.lineno - 1].decode().strip(),
                    kind=kind,
                    before=source[start:end].decode(),
                    after=f"({after})",
                    start=start,
                    end=end,
                )
                found[mutant.start, mutant.end, mutant.kind, mutant.after] = mutant
    return [found[place] for place in sorted(found)]


def _nodes(root: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those within it, but not within an f-string: Python 3.11 misplaces those."""
    yield root
    for child in ast.iter_child_nodes(root):
        if not isinstance(child, ast.JoinedStr):
            yield from _nodes(child)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr, str, str]]:
    """Yield the expression that is replaced, the kind of the change, and the new text."""
    if isinstance(node, ast.Compare):
        flipped = [FLIPPED[type(node.ops[0])](), *node.ops[1:]]
        changed = ast.Compare(left=node.left, ops=flipped, comparators=node.comparators)
        yield node, "comparison flipped", ast.unparse(changed)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, "one more", str(node.value + 1)
        yield node, "one less", str(node.value - 1)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, "negated", str(not node.value)
    if isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.Compare | ast.Constant):
        yield node.test, "negated", f"not ({ast.unparse(node.test)})"
    if isinstance(node, ast.Call):
        for dropped in node.keywords:
            rest = [keyword for keyword in node.keywords if keyword is not dropped]
            yield node, "keyword dropped", ast.unparse(ast.Call(func=node.func, args=node.args, keywords=rest))
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield node.value, "constant returned", "None"


# --- results ----------------------------------------------------------------------------------------------------------


class Results:
    """The mutants that were drawn, and what is known of them, in a directory that several processes append to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        keys = set(json.loads((directory / "drawn.json").read_text(encoding="utf-8")))
        by_key: dict[str, Mutant] = {}
        for mutant in mutants(ROOT):
            if mutant.key in keys:
                by_key.setdefault(mutant.key, mutant)
        self.drawn = list(by_key.values())

    def verdicts(self) -> list[Verdict]:
        return [Verdict(**entry) for entry in _entries(self.directory / "verdicts.jsonl")]

    def trials(self) -> list[Trial]:
        return [Trial(**entry) for entry in _entries(self.directory / "trials.jsonl")]

    def add(self, entry: Verdict | Trial) -> None:
        name = "verdicts.jsonl" if isinstance(entry, Verdict) else "trials.jsonl"
        with (self.directory / name).open("a", encoding="utf-8") as out:
            out.write(json.dumps(asdict(entry)) + "\n")

    def passed(self) -> Counter[tuple[str, str]]:
        """Return how often each test function passed with each mutant."""
        return Counter((key, trial.function) for trial in self.trials() for key in trial.passed)

    def left(self) -> list[Mutant]:
        """Return the mutants that no test has caught."""
        known = {verdict.key for verdict in self.verdicts()} | equivalent()
        return [mutant for mutant in self.drawn if mutant.key not in known]


def _entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def draw(directory: Path, among: Sequence[Mutant], seed: int, count: int) -> None:
    """Choose mutants at random. Names of mutants are not unique where a line repeats a number: the first one counts."""
    keys = list(dict.fromkeys(mutant.key for mutant in among))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "drawn.json").write_text(json.dumps(random.Random(seed).sample(keys, min(count, len(keys))), indent=1))


def equivalent() -> set[str]:
    """Return the keys of the mutants that no test can tell from the original. Lines with # are their reasons."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def table(results: Results) -> Iterator[str]:
    """Yield the lines of a Markdown table of all drawn mutants, and the share of each package that was caught.

    A mutant that no test has reached may be one whose tests have not run yet.
    """
    caught_by = {verdict.key: verdict.caught_by for verdict in results.verdicts()}
    passed = Counter(key for key, _ in results.passed())
    counted = [mutant for mutant in results.drawn if mutant.key not in equivalent()]
    outcomes = {
        mutant.key: CAUGHT if mutant.key in caught_by else SURVIVED if passed[mutant.key] else NOT_REACHED
        for mutant in counted
    }
    yield "| mutant | outcome | tests that passed |"
    yield "|---|---|---|"
    for mutant in sorted(counted, key=lambda mutant: (OUTCOMES.index(outcomes[mutant.key]), mutant.key)):
        change = mutant.key.partition(": ")[2].replace("|", "\\|")
        outcome = caught_by.get(mutant.key, f"**{outcomes[mutant.key]}**").replace("|", "\\|")
        yield f"| `{mutant.file}:{mutant.line}` {change} | {outcome} | {passed[mutant.key]} |"
    yield ""
    for package in sorted({_package(mutant) for mutant in counted}):
        yield _share(package, [outcomes[mutant.key] for mutant in counted if _package(mutant) == package])
    yield _share("all", list(outcomes.values()))


def _share(name: str, outcomes: Sequence[str]) -> str:
    counts = Counter(outcomes)
    shown = ", ".join(f"{counts[outcome]} {outcome}" for outcome in reversed(OUTCOMES))
    return f"- {name}: {shown}: {100 * counts[CAUGHT] / max(1, len(outcomes)):.1f} %"


def _package(mutant: Mutant) -> str:
    return mutant.file.split("/")[1].partition(".")[0]


# --- changed files ----------------------------------------------------------------------------------------------------


def try_files(
    results: Results, source: str, tests: Sequence[str], first_failure: Callable[[Mutant, Sequence[str]], str]
) -> None:
    """Run tests with each mutant of a part of the source that is left."""
    name = " ".join(tests)
    tried = {key for trial in results.trials() if trial.test == name for key in trial.passed}
    for mutant in results.left():
        if not mutant.file.startswith(source) or mutant.key in tried:
            continue
        test = first_failure(mutant, tests)
        results.add(Verdict(key=mutant.key, caught_by=test) if test else Trial(test=name, passed=[mutant.key]))
        print(f"{test or 'passed'}  {mutant.key}", flush=True)


def write_tree(target: Path) -> None:
    """Copy what the tests need. The copy is changed, never the repository."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def first_failure_in(tree: Path, mutant: Mutant, tests: Sequence[str]) -> str:
    """Return the first test that fails in a tree with a mutant, or "" if all pass. Restore the file."""
    path = tree / mutant.file
    original = path.read_bytes()
    try:
        path.write_bytes(original[: mutant.start] + mutant.after.encode() + original[mutant.end :])
        return first_failure(tree, tests)
    finally:
        path.write_bytes(original)


def first_failure(tree: Path, tests: Sequence[str]) -> str:
    report = tree / "failures.txt"
    report.unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": str(tree), "GESSO_FIRST_FAILURE": str(report)}
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "tools.forked_mutants", *tests]
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
    ) as process:
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the servers that the tests have started
            return f"{' '.join(tests)} (hang)"
    if code == 0:
        return ""
    return report.read_text(encoding="utf-8").strip() if report.exists() else f"exit {code} of {' '.join(tests)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("draw", "forks", "files", "table"):
        commands.add_parser(name).add_argument("directory", type=Path)
    commands.choices["draw"].add_argument("--seed", type=int, default=0)
    commands.choices["draw"].add_argument("--count", type=int, default=200)
    commands.choices["files"].add_argument("--of", default="gesso", help="the part of the source")
    commands.choices["files"].add_argument("--tree", default="tree", help="name of the copy, one per process")
    options, tests = parser.parse_known_args()
    directory = options.directory.resolve()
    if directory.is_relative_to(ROOT):
        parser.error("the directory must be outside of the repository")
    if options.command == "draw":
        draw(directory, mutants(ROOT), options.seed, options.count)
    if options.command == "forks":
        command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "tools.forked_mutants", *tests]
        return subprocess.run(command, cwd=ROOT, env=os.environ | {"GESSO_MUTANTS": str(directory)}).returncode
    if options.command == "files":
        tree = directory / options.tree
        write_tree(tree)
        try_files(Results(directory), options.of, tests, partial(first_failure_in, tree))
    if options.command == "table":
        print("\n".join(table(Results(directory))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
