"""Count what ties the tests to the layout of the package: the internal names they import, and what they patch.

    python -m tools.doors
    python -m tools.doors --list modules       (or objects, names)

A name is internal if it is not imported from `gesso` itself. A patch is a `setattr` of pytest's monkeypatch. Those of
modules replace a constant or a function of one of Gesso's modules, or of a module in a variable. Those of objects
replace a part of something else: a class, an instance, or a module that is not ours, such as `torch.cuda`.
"""

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Patch:
    path: Path
    line: int
    target: str
    of_module: bool
    has_reason: bool  # in a comment beside it or above it

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.target}" + ("" if self.has_reason else " (without a reason)")


def internal_names(root: Path) -> set[str]:
    """Return the names that tests import from modules below `gesso`."""
    names = set()
    for path in _test_files(root):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gesso."):
                names |= {f"{node.module}.{imported.name}" for imported in node.names}
            if isinstance(node, ast.Import):
                names |= {imported.name for imported in node.names if imported.name.startswith("gesso.")}
    return names


def patches(root: Path) -> Iterator[Patch]:
    """Yield the patches of all tests."""
    for path in _test_files(root):
        tree, lines = _tree(path), path.read_text(encoding="utf-8").splitlines()
        imported = _imported(tree)
        modules = {name: module for name, module in imported.items() if _is_module(root, module)}
        for node in ast.walk(tree):
            if not (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr"
            ):
                continue
            target, name = node.args[:2]
            is_text = isinstance(target, ast.Constant)
            patched = str(target.value) if is_text else f"{ast.unparse(target)}.{ast.unparse(name)}"
            module = patched.rpartition(".")[0] if is_text else modules.get(ast.unparse(target), "")
            is_variable = isinstance(target, ast.Name) and isinstance(name, ast.Name) and target.id not in imported
            yield Patch(
                path=path.relative_to(root),
                line=node.lineno,
                target=patched,
                of_module=is_variable or _is_module(root, module),
                has_reason=_has_reason(lines, node),
            )


def _test_files(root: Path) -> list[Path]:
    return sorted((root / "tests").rglob("*.py"))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imported(tree: ast.Module) -> dict[str, str]:
    """Return what a file imports, by the names it gives to them."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for imported in node.names:
                names[imported.asname or imported.name] = f"{node.module}.{imported.name}"
        if isinstance(node, ast.Import):
            for imported in node.names:
                names[imported.asname or imported.name] = imported.name
    return names


def _is_module(root: Path, name: str) -> bool:
    path = root.joinpath(*name.split("."))
    return name.split(".")[0] == "gesso" and (path.with_suffix(".py").exists() or (path / "__init__.py").exists())


def _has_reason(lines: list[str], call: ast.Call) -> bool:
    """Return whether a comment is on a line of a call or on the line above it."""
    assert call.end_lineno is not None
    return (
        any("#" in line for line in lines[call.lineno - 1 : call.end_lineno])
        or lines[call.lineno - 2].lstrip()[:1] == "#"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="a copy of the repository")
    parser.add_argument("--list", choices=("modules", "objects", "names"), help="print each of a kind")
    options = parser.parse_args()
    every, names = list(patches(options.root)), internal_names(options.root)
    if options.list:
        of_modules = options.list == "modules"
        chosen = [str(patch) for patch in every if patch.of_module == of_modules]
        print("\n".join(sorted(names) if options.list == "names" else chosen))
        return
    print(f"internal names imported by tests: {len(names)}")
    print(f"monkeypatch.setattr: {len(every)}, of Gesso's modules: {sum(patch.of_module for patch in every)}")
    print(f"without a reason beside them: {sum(not patch.has_reason for patch in every)}")


if __name__ == "__main__":
    main()
