"""Find a checkpoint by name: a bundled model, a local directory or GGUF file, or a model of the hub."""

import re
from pathlib import Path

from gesso import bundled
from gesso.errors import CheckpointError

SMALL = ("*.json", "*.jinja", "*.model")  # configuration, tokenizer, chat template and the index of the weights


def find(name: str | Path | None, *, weights: bool = True) -> Path:
    """Return the directory of a checkpoint: a bundled model (None: gesso-mini), a local directory or a hub name.

    The name of a bundled model always means that model; a local directory of the same name is given as `./name` or as
    a `Path`. A GGUF file is a checkpoint of its own. A hub checkpoint is downloaded once, and an interrupted download
    is resumed. Without `weights`, only the other files are downloaded.
    """
    if name is None:
        return bundled.directory()
    if isinstance(name, str) and name in bundled.DIRECTORIES:
        return bundled.directory(name)
    path = Path(name).expanduser()
    if str(name) and (path.is_dir() or (path.is_file() and path.suffix == ".gguf")):
        return path
    if path.is_file():
        raise CheckpointError(f"{path} is not a GGUF file; give a .gguf file or the checkpoint's directory")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", str(name)):
        raise CheckpointError(
            f"no directory {str(name)!r}, and it is neither a hub name of the form owner/model nor a bundled model "
            f"({', '.join(bundled.DIRECTORIES)})"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(name), allow_patterns=[*SMALL, *(["*.safetensors"] if weights else [])]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"{name!r} is not a local directory and could not be fetched from the hub ({type(error).__name__}): "
            f"{str(error).splitlines()[0]} Check the name, the network, HF_TOKEN for gated models and HF_HUB_OFFLINE."
        ) from error
