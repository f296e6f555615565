"""The import structure: packages import only packages below them, and modules do not import each other in cycles."""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests import durations
from tests.conftest import CORE, TESTS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gesso"

BASE = {"errors", "checks", "files", "printable", "progress", "removed", "renamed", "rules", "settings"}
IMAGES = BASE | {"images"}
MODEL = BASE | {"model"}
CHECKPOINT = MODEL | {"checkpoint", "bundled"}
WEIGHTS = CHECKPOINT | {"adapters"}
TEXT = IMAGES | {"chat"}
ENGINE = MODEL | {"diffusion", "backends", "constraints", "chat", "images", "memory"}
API = ENGINE | WEIGHTS | {"engine", "infill", "api", "options", "presets", "request", "results", "loading"}
# Each package with the packages it may import, itself aside.
BELOW = {
    "errors": set(),
    "checks": {"errors"},
    "files": {"errors"},
    "printable": set(),
    "removed": set(),
    "renamed": {"checks", "errors"},
    "rules": set(),
    "own_code": {"errors"},
    "cards": {"errors"},
    "cores": BASE,
    "progress": {"printable"},
    "settings": BASE,
    "images": BASE,
    "model": BASE,
    "adapters": CHECKPOINT,
    "diffusion": BASE,
    "backends": WEIGHTS | {"cards", "diffusion", "images"},
    "chat": IMAGES,
    "bundled": BASE,
    "demo": set(),
    "checkpoint": CHECKPOINT,
    "memory": CHECKPOINT | {"cards"},
    "constraints": TEXT,
    "engine": ENGINE,
    "infill": ENGINE | {"engine", "request"},
    "presets": BASE,
    "options": IMAGES | {"constraints", "engine", "presets", "request"},
    "request": ENGINE | CHECKPOINT | {"engine", "presets"},
    "results": BASE | {"chat", "engine", "images"},
    "api": API,
    "loading": API | {"cores"},
    "choosing": API,
    "info": CHECKPOINT | {"adapters", "backends", "cards", "memory", "chat", "images"},
    "train": WEIGHTS | {"memory", "diffusion", "chat", "backends", "images", "own_code"},
    "eval": API | {"own_code"},
    "serve": API | {"choosing"},
    "trace": API | {"serve"},
    "distill": API | {"train", "eval"},
    "bench": API | {"cards", "eval"},
    "cli": API
    | {"cards", "choosing", "cores", "own_code", "serve", "train", "eval", "distill", "info", "trace", "bench", "demo"},
}


@cache
def imported(path: Path) -> set[str]:
    """Return the names that a file imports from gesso, also inside functions and for type checking."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "gesso"}


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("package", BELOW)
def test_a_package_imports_only_from_below(package):
    paths = [path for path in PACKAGE.rglob("*.py") if package_of(path) == package]
    assert paths
    for path in paths:
        others = {name.split(".")[1] for name in imported(path) if "." in name} - {package, "__version__"}
        assert others <= BELOW[package], f"{path.relative_to(ROOT)} imports {others - BELOW[package]}"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def import_graph() -> dict[str, set[str]]:
    """Return the modules that each module names in its imports. Parent packages, imported implicitly, do not count."""
    paths = {module_of(path): path for path in PACKAGE.rglob("*.py")}
    graph = {}
    for module, path in paths.items():
        names = imported(path)  # of a module, or of something in a module
        graph[module] = {name if name in paths else name.rpartition(".")[0] for name in names} & paths.keys()
    return graph


def test_modules_do_not_import_each_other_in_cycles():
    graph = import_graph()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(reversed(error.args[1]))}")


def test_packages_do_not_import_each_other_in_cycles():
    graph: dict[str, set[str]] = {}
    for module, targets in import_graph().items():
        names = {name.split(".")[1] for name in (module, *targets) if "." in name}
        package = (module.split(".") + [""])[1]
        graph.setdefault(package, set()).update(names - {package})
    graph.pop("", None), graph.pop("__main__", None)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"packages import each other: {' -> '.join(reversed(error.args[1]))}")


def test_every_package_has_its_place():
    assert {package_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__"} == set(BELOW)


def test_the_package_never_imports_its_oracle():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import transformers" not in text and "from transformers" not in text, path


def test_slow_packages_are_imported_only_in_the_tests_that_need_them():
    """Each process of pytest-xdist imports every test file. These packages take seconds."""
    slow = re.compile(r"^(?:import|from) (peft|openai|schemathesis|jsonschema)\b", re.MULTILINE)
    for path in TESTS.rglob("test_*.py"):
        found = slow.search(path.read_text(encoding="utf-8"))
        assert not found, f"{path.relative_to(ROOT)}: import {found[1]} inside the functions that need it"


def test_make_check_covers_every_package():
    files = {str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}
    slow = {file for file, seconds in durations.recorded().items() if seconds >= durations.SLOW}
    assert files >= slow, "tests/durations.json names files that exist"
    for core in CORE:
        file, _, name = core.partition("::")
        assert f"def {name.partition('[')[0]}(" in (TESTS / file).read_text(encoding="utf-8"), core
    covered = {file.partition("/")[0] for file in (files - slow) | set(CORE)}
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= covered
