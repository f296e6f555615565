"""The examples that users adapt import only the public interfaces of the package."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLIC = {
    "gesso",
    "gesso.errors",
    "gesso.eval",
    *(f"gesso.eval.{name}" for name in ("task", "evaluate", "estimate", "paired", "plot")),
}
# These make the bundled models, or look into the package on purpose.
INTERNAL = {
    "demo", "distill", "faq", "mini", "overfit", "python_infill", "rubric", "samplers", "structured", "sudoku",
    "sudoku_images",
}  # fmt: skip
FOLDERS = sorted({path.parent.name for path in EXAMPLES.glob("*/*.py")} - INTERNAL)


def imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the modules of the package that a file imports, each with the names from it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names if alias.name.split(".")[0] == "gesso")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gesso":
            yield node.module or "", [alias.name for alias in node.names]


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_example_imports_only_public_modules_and_names(folder):
    found = [(path, *one) for path in sorted((EXAMPLES / folder).glob("*.py")) for one in imports(path)]
    for path, module, names in found:
        assert module in PUBLIC, f"{path.name} imports {module}"
        assert not [name for name in names if name.startswith("_")], f"{path.name} imports a private name"
