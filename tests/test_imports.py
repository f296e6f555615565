"""The import structure: packages import only those below them, and no module imports itself by a detour."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gesso"

BASE = {"errors", "checks", "files", "printable", "settings"}
MODEL = BASE | {"model", "adapters"}
WEIGHTS = MODEL | {"checkpoint", "bundled"}
TEXT = BASE | {"chat"}
ENGINE = MODEL | {"diffusion", "ops", "constraints", "chat"}
API = ENGINE | WEIGHTS | {"engine", "infill", "api"}
# Each package with the packages it may import, itself aside.
BELOW = {
    "errors": set(),
    "checks": {"errors"},
    "files": {"errors"},
    "printable": set(),
    "settings": BASE | {"diffusion"},
    "model": BASE | {"adapters", "ops"},
    "adapters": BASE | {"model", "ops", "checkpoint"},
    "ops": BASE,
    "diffusion": BASE | {"ops"},
    "chat": BASE,
    "bundled": BASE,
    "checkpoint": WEIGHTS | {"ops", "chat"},
    "constraints": TEXT | {"ops"},
    "engine": ENGINE | {"infill", "api"},
    "infill": ENGINE | {"engine", "api"},
    "api": API,
    "info": WEIGHTS | {"chat", "serve", "ops"},
    "train": WEIGHTS | {"diffusion", "chat", "ops"},
    "eval": API,
    "serve": API | {"info"},
    "trace": API | {"serve"},
    "bench": API | {"serve", "train", "eval", "info"},
    "cli": API | {"serve", "train", "eval", "info", "trace", "bench"},
}


def imported(path: Path) -> set[str]:
    """Return the names that a file imports from gesso, those inside functions and for type checking too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("gesso.")}


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("package", BELOW)
def test_a_package_imports_only_from_below(package):
    paths = [path for path in PACKAGE.rglob("*.py") if package_of(path) == package]
    assert paths
    for path in paths:
        others = {name.split(".")[1] for name in imported(path)} - {package, "__version__"}
        assert others <= BELOW[package], f"{path.relative_to(ROOT)} imports {others - BELOW[package]}"


def test_every_package_has_its_place():
    assert {package_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__"} == set(BELOW)


def test_the_package_never_imports_its_oracle():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import transformers" not in text and "from transformers" not in text, path
