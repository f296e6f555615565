"""The models in the box: small ones that come with the package, known by name wherever a checkpoint is named."""

from pathlib import Path

from gesso.errors import CheckpointError

BASE, SOLVER = "gesso-mini", "gesso-sudoku"  # the second is the first, fine-tuned
DIRECTORIES = {name: Path(__file__).parent / name for name in (BASE, SOLVER)}


def directory(name: str = BASE) -> Path:
    path = DIRECTORIES[name]
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"{name} comes with gesso, but is missing from this installation: there is no {path / 'config.json'}. "
            "Install gesso again, with its weights, or name another checkpoint"
        )
    return path
