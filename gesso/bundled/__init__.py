"""The bundled models: small ones inside the package, which have a name in place of a directory."""

from pathlib import Path

from gesso.errors import CheckpointError

BASE, SOLVER = "gesso-mini", "gesso-sudoku"  # the second is a fine-tuned version of the first
DEMOS = {
    BASE: "a demo model of 11M parameters that turns requests into JSON and completes Python, and knows nothing else",
    SOLVER: "a demo model of 11M parameters that solves Sudokus; gesso sudoku is made for it",
}
DIRECTORIES = {name: Path(__file__).parent / name for name in (BASE, SOLVER)}


def directory(name: str = BASE) -> Path:
    path = DIRECTORIES[name]
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"the bundled model {name} is missing from this installation: {path / 'config.json'} does not exist; "
            "reinstall gesso with its weights, or name another checkpoint"
        )
    return path
