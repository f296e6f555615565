"""A mutation run: whether some test fails if one place of the source is wrong.

    python -m tools.mutate record /tmp/mutants                    # run the suite once, and note the lines of each test
    python -m tools.mutate run /tmp/mutants --seed 0 --count 200  # continues where it was interrupted
    python -m tools.mutate table /tmp/mutants                     # as Markdown, with the share that was caught

A mutant is a copy of the source with one change: a comparison flipped, a number one larger or smaller, a condition
negated, a keyword of a call dropped, or a result replaced by a constant. Each mutant is tested by the tests that
executed its line, the shortest first, until one fails. A run that hangs counts as caught. Mutants that no test can
tell from the original are listed in `tools/equivalent_mutants.txt` with the reason; they are drawn, but not counted.

Everything is written to the given directory, which must be outside of the repository. Lines that only other processes
execute, such as the engine of a server, belong to the test file that started the process.
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
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    "gesso/model", "gesso/diffusion", "gesso/engine", "gesso/requests.py", "gesso/serve", "gesso/constraints",
    "gesso/train/objective.py",
)  # fmt: skip
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
MOST_TESTS = 100  # of one line, the shortest first
SECONDS = 300.0  # for the tests of one mutant
COPIED = ("gesso", "tests", "tools", "examples", "benchmarks", "docs", "pyproject.toml", "README.md")
FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of the source: the text between two places is replaced."""

    file: str
    line: int  # from 1
    context: str  # the line
    kind: str
    before: str
    after: str
    start: int  # offsets in the bytes of the file
    end: int

    @property
    def key(self) -> str:
        """The name of the mutant in lists. It stays the same if lines are added above."""
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.file}: {self.kind}: {before} -> {after} in {self.context}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a mutant."""

    key: str
    line: int
    caught_by: str  # a test, "hang", or "" if the mutant survived
    tests: int  # that execute the line
    seconds: float


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


def write_tree(target: Path) -> None:
    """Copy what the tests need. The copy is mutated, never the repository."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


# --- recording --------------------------------------------------------------------------------------------------------


def record(directory: Path, arguments: list[str]) -> int:
    """Run the tests with `tools/executed_lines.py`, which writes a file per process."""
    lines = directory / "lines"
    shutil.rmtree(lines, ignore_errors=True)
    lines.mkdir(parents=True)
    startup = directory / "startup"
    startup.mkdir(exist_ok=True)
    (startup / "sitecustomize.py").write_text("from tools import executed_lines\n\nexecuted_lines.start_in_child()\n")
    paths = [str(startup), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"GESSO_EXECUTED_LINES": str(lines), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "pytest", "-p", "tools.executed_lines", "--ignore=tests/examples", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


class Recorded:
    """The tests that executed each line, and how long they took."""

    def __init__(self, directory: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.tests: dict[tuple[str, int], set[str]] = {}
        for path in sorted((directory / "lines").glob("*.jsonl")):
            for text in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(text)
                self.seconds[entry["test"]] = entry["seconds"]
                for file, lines in entry["lines"].items():
                    for line in lines:
                        self.tests.setdefault((file, line), set()).add(entry["test"])

    def of(self, mutant: Mutant) -> list[str]:
        """Return the tests of a mutant's line, the shortest first. Files of tests whose child processes executed the
        line come last."""
        tests = self.tests.get((mutant.file, mutant.line), set())
        return sorted(tests, key=lambda test: ("::" not in test, self.seconds[test]))[:MOST_TESTS]


# --- running ----------------------------------------------------------------------------------------------------------


def drawn(directory: Path, among: Sequence[Mutant], seed: int, count: int) -> tuple[list[Mutant], Recorded]:
    """Return a random choice among the mutants whose line a test executed."""
    recorded = Recorded(directory)
    possible = [mutant for mutant in among if (mutant.file, mutant.line) in recorded.tests]
    return random.Random(seed).sample(possible, min(count, len(possible))), recorded


def judge(tree: Path, mutant: Mutant, tests: list[str]) -> Verdict:
    """Run the tests on a mutant until one fails, and restore the file."""
    path = tree / mutant.file
    original = path.read_bytes()
    began = time.monotonic()
    try:
        path.write_bytes(original[: mutant.start] + mutant.after.encode() + original[mutant.end :])
        caught_by = first_failure(tree, tests)
    finally:
        path.write_bytes(original)
    seconds = round(time.monotonic() - began, 1)
    return Verdict(key=mutant.key, line=mutant.line, caught_by=caught_by, tests=len(tests), seconds=seconds)


def first_failure(tree: Path, tests: list[str]) -> str:
    """Return the first test that fails, "hang" if they take too long, or "" if all pass."""
    report = tree / "failures.txt"
    report.unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": str(tree), "GESSO_FIRST_FAILURE": str(report)}
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "tools.executed_lines", *tests]
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the servers that the tests have started
            return "hang"
    if code == 0:
        return ""
    return report.read_text(encoding="utf-8").strip() if report.exists() else "collection"


def run(
    directory: Path,
    among: Sequence[Mutant],
    seed: int,
    count: int,
    judge: Callable[[Path, Mutant, list[str]], Verdict] = judge,
) -> None:
    """Test the drawn mutants that have no verdict yet, in the tree of the directory."""
    chosen, recorded = drawn(directory, among, seed, count)
    done = {verdict.key for verdict in verdicts(directory)}
    known = equivalent()
    for number, mutant in enumerate(chosen, start=1):
        if mutant.key in done or mutant.key in known:
            continue
        verdict = judge(directory / "tree", mutant, recorded.of(mutant))
        with (directory / "verdicts.jsonl").open("a", encoding="utf-8") as out:
            out.write(json.dumps(asdict(verdict)) + "\n")
        print(f"{number}/{len(chosen)} {verdict.caught_by or 'SURVIVED'}  {mutant.key}", flush=True)


# --- results ----------------------------------------------------------------------------------------------------------


def verdicts(directory: Path) -> list[Verdict]:
    path = directory / "verdicts.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Verdict(**json.loads(line)) for line in lines]


def equivalent() -> set[str]:
    """Return the keys of the mutants that no test can tell from the original. Lines with # are their reasons."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def table(directory: Path) -> Iterator[str]:
    """Yield the lines of a Markdown table of all verdicts, and the share of each package that was caught."""
    found = [verdict for verdict in verdicts(directory) if verdict.key not in equivalent()]
    yield "| mutant | caught by | tests | s |"
    yield "|---|---|---|---|"
    for verdict in sorted(found, key=lambda verdict: (bool(verdict.caught_by), verdict.key)):
        file, _, change = verdict.key.partition(": ")
        change = change.replace("|", "\\|")
        caught_by = verdict.caught_by.replace("|", "\\|") or "**survived**"
        yield f"| `{file}:{verdict.line}` {change} | {caught_by} | {verdict.tests} | {verdict.seconds:g} |"
    counts = Counter(_package(verdict) for verdict in found)
    caught = Counter(_package(verdict) for verdict in found if verdict.caught_by)
    yield ""
    for package in sorted(counts):
        yield f"- {package}: {caught[package]} of {counts[package]}"
    total = max(1, counts.total())
    yield f"- all: {caught.total()} of {counts.total()} ({100 * caught.total() / total:.0f} %)"


def _package(verdict: Verdict) -> str:
    return verdict.key.split("/")[1].partition(".")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("record", "run", "table"):
        commands.add_parser(name).add_argument("directory", type=Path)
    commands.choices["run"].add_argument("--seed", type=int, default=0)
    commands.choices["run"].add_argument("--count", type=int, default=200)
    options, rest = parser.parse_known_args()
    directory = options.directory.resolve()
    if directory.is_relative_to(ROOT):
        parser.error("the directory must be outside of the repository")
    if options.command == "record":
        return record(directory, rest)
    if rest:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    if options.command == "run":
        write_tree(directory / "tree")
        run(directory, mutants(ROOT), options.seed, options.count)
    else:
        print("\n".join(table(directory)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
