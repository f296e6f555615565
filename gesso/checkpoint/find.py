"""Find a checkpoint by name: a bundled model, a local directory or GGUF file, or a model of the hub."""

from pathlib import Path

from gesso import bundled
from gesso.checkpoint import aliases, hub
from gesso.checkpoint.cache import HubName
from gesso.errors import CheckpointError


def find_directory(name: str | Path | None) -> Path:
    """Return the directory of a checkpoint, for uses that a GGUF file does not suit."""
    path = find(name)
    if path.is_file():
        raise CheckpointError(f"{path} is a GGUF file; this needs a checkpoint's directory")
    return path


def find(name: str | Path | None, *, weights: bool = True) -> Path:
    """Return the directory, or the GGUF file, of a checkpoint.

    It is a bundled model (None: gesso-mini), a local directory or file, or a hub name.

    The name of a bundled model always means that model, and so does an alias; a local directory of the same name is
    given as `./name` or as a `Path`. A GGUF file is a checkpoint of its own. A hub checkpoint is downloaded once, and
    an interrupted download is resumed. Without `weights`, only the other files are downloaded.
    """
    if name is None:
        return bundled.directory()
    if isinstance(name, str) and name in bundled.DIRECTORIES:
        return bundled.directory(name)
    name = aliases.hub_name(name)
    path = Path(name).expanduser()
    if str(name) and (path.is_dir() or (path.is_file() and path.suffix == ".gguf")):
        return path
    if path.is_file():
        raise CheckpointError(f"{path} is not a GGUF file; give a .gguf file or the checkpoint's directory")
    hub_name = HubName.parse(str(name))
    if hub_name is None:
        raise CheckpointError(
            f"no directory {str(name)!r}, and it is neither a hub name of the form owner/model nor a bundled model "
            f"({', '.join(bundled.DIRECTORIES)})"
        )
    return hub.find(hub_name, weights=weights)


def hub_base(name: str | Path | None) -> str | None:
    """Return the hub name of a base model, or None if it has none that others can use, such as a local directory."""
    if name is None or name in bundled.DIRECTORIES:
        return None
    name = aliases.hub_name(name)
    if isinstance(name, Path) or Path(name).expanduser().exists():
        return None
    hub_name = HubName.parse(name)
    return None if hub_name is None else hub_name.repository
