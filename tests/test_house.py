"""The rooms and their doors: imports point down only."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gesso"

# A room may import itself and the rooms named here.
PLAIN = {"errors", "checks", "files", "config", "settings"}
BELOW = {
    "ops": PLAIN,
    "model": PLAIN | {"ops"},
    "diffusion": PLAIN | {"ops"},
    "guide": PLAIN | {"ops", "tokenizer", "answer"},
    "engine": PLAIN | {"ops", "model", "diffusion", "guide"},
    "train": PLAIN
    | {"ops", "model", "diffusion", "checkpoint", "saving", "tokenizer", "messages", "printable", "vision"},
    "quantize": PLAIN | {"ops", "checkpoint", "saving", "vision", "printable"},
    "serve": PLAIN
    | {"engine", "guide", "plan", "filling", "api", "answer", "checkpoint", "tokenizer", "messages", "fit", "info"}
    | {"untrained", "workspace"},
    "bench": PLAIN
    | {"ops", "model", "guide", "engine", "train", "box", "api", "tasks", "serve", "untrained", "checkpoint"},
    "trace": PLAIN | {"api", "engine", "serve"},
}


def rooms_imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("gesso.")}
    return found


@pytest.mark.parametrize("room", BELOW)
def test_a_room_imports_only_from_below(room):
    for path in (PACKAGE / room).glob("*.py"):
        assert rooms_imported(path) <= BELOW[room] | {room}, path


def test_only_the_command_line_imports_the_commands():
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "commands" and path.name not in ("cli.py", "__main__.py"):
            assert not rooms_imported(path) & {"cli", "commands", "options"}, path


def test_the_command_line_only_registers():
    """Whatever a command does is in `commands`, or below it."""
    found = rooms_imported(PACKAGE / "cli.py")
    assert found <= {"commands", "errors", "options", "terminal"}


def test_the_formats_know_no_checkpoint():
    """`checkpoint` uses them; of this room, only what the command does may use `checkpoint`."""
    for path in (PACKAGE / "quantize").glob("*.py"):
        if path.name != "command.py":
            assert rooms_imported(path) <= PLAIN | {"ops", "quantize"}, path


def test_the_package_never_imports_its_oracle():
    for path in PACKAGE.rglob("*.py"):
        assert "transformers" not in {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }, path
