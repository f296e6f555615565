"""Count what makes code cost a second reading: vague names, class names with two meanings, packed lines.

python -m tools.reading_costs
python -m tools.reading_costs --list names          (or classes, tuples, splats, inner)
"""

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
VAGUE = ("found", "own", "known", "held", "asked", "made", "kept", "each", "one")
LONG_LIVED = 1  # lines after its assignment on which a vague name is still used
LEAST_PACKED = 3  # values of a tuple assignment


@dataclass(frozen=True)
class Cost:
    kind: str
    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.what}"


def costs(directory: Path) -> Iterator[Cost]:
    """Yield every cost in the modules below a directory."""
    classes: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    for path in sorted(directory.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append((path, node.lineno))
            for kind, what in _of_node(node):
                yield Cost(kind, path, getattr(node, "lineno", 1), what)
    for name, places in classes.items():
        if len(places) > 1:
            for path, line in places:
                yield Cost("classes", path, line, name)


def _of_node(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from (("names", name) for name in _long_lived(node))
        inner = [part for part in ast.walk(node) if isinstance(part, ast.FunctionDef | ast.Lambda) and part is not node]
        if len([part for part in inner if isinstance(part, ast.FunctionDef)]) > 1:
            yield "inner", f"{node.name} has {len(inner)} inner functions"
    if isinstance(node, ast.Assign):
        for target in node.targets:
            packed = isinstance(target, ast.Tuple) and len(target.elts) >= LEAST_PACKED
            if packed and isinstance(node.value, ast.Tuple):
                yield "tuples", ast.unparse(target)
    if isinstance(node, ast.Call) and any(isinstance(argument, ast.Starred) for argument in node.args):
        name = ast.unparse(node.func)
        if name.rpartition(".")[2][:1].isupper():
            yield "splats", name


def _long_lived(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Yield the vague names of values that are still used some lines after they are assigned."""
    assigned: dict[str, int] = {}
    last_use: dict[str, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in VAGUE:
            if isinstance(node.ctx, ast.Store):
                assigned[node.id] = min(node.lineno, assigned.get(node.id, node.lineno))
            last_use[node.id] = max(node.lineno, last_use.get(node.id, 0))
    return (name for name, line in assigned.items() if last_use[name] - line > LONG_LIVED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT / "gesso")
    parser.add_argument(
        "--list", choices=("names", "classes", "tuples", "splats", "inner"), help="print each of a kind"
    )
    options = parser.parse_args()
    every = list(costs(options.directory.resolve()))
    if options.list:
        print("\n".join(str(cost) for cost in every if cost.kind == options.list))
        return
    count = Counter(cost.kind for cost in every)
    print(f"long-lived vague names: {count['names']}, of these 'found': {sum(c.what == 'found' for c in every)}")
    print(f"class names with two meanings: {len({c.what for c in every if c.kind == 'classes'})}")
    print(f"tuple assignments of {LEAST_PACKED} or more values: {count['tuples']}")
    print(f"tuples splatted into constructors: {count['splats']}")
    print(f"functions with two or more inner functions: {count['inner']}")


if __name__ == "__main__":
    main()
