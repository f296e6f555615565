"""Headers of safetensors files: which tensors they hold, and where.

The `safetensors` library checks a file as a whole: the header, and that the tensors cover the data without overlap. The
offsets, which it does not give away, are then read from the header itself.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gesso.checkpoint.stored import Stored
from gesso.errors import CheckpointError
from gesso.files import check_regular, read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_files(directory: Path) -> list[Path]:
    """Return the weight files that the index names, missing ones included."""
    if (directory / INDEX).exists():
        return [directory / name for name in sorted(weights_named(read_json(directory / INDEX), directory / INDEX))]
    return [directory / SINGLE] if (directory / SINGLE).exists() else []


def weights_named(index: Mapping[str, Any], path: Path = Path(INDEX)) -> set[str]:
    """Return the files that the index of the weights names. Reject paths to other directories, and pickles."""
    names = index.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{path} has no weight_map")
    if wrong := [name for name in names.values() if not (is_plain(name) and name.endswith(".safetensors"))]:
        raise CheckpointError(f"{path} names {wrong[0]!r}, which is not a safetensors file of the same directory")
    return set(names.values())


NAME_BYTES = 200  # of a file's name; file systems have room for 255, and a download adds an ending
DEVICE = re.compile(r"(con|prn|aux|nul|(com|lpt)[0-9])(\.|$)", re.IGNORECASE)  # on Windows, in every directory


def is_plain(name: Any) -> bool:
    """Return whether this names a file in the same directory, on any operating system, and can be printed."""
    if not isinstance(name, str) or not name.isprintable() or re.search(r"[/\\:]", name):
        return False
    return 0 < len(name.encode()) <= NAME_BYTES and name not in (".", "..") and DEVICE.match(name) is None


def read_header(file: Path) -> dict[str, Stored]:
    """Return the tensors of a file by name."""
    with opened(file):
        pass
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
    return {
        name: Stored(
            name,
            file,
            8 + size + entry["data_offsets"][0],
            entry["data_offsets"][1] - entry["data_offsets"][0],
            entry["dtype"],
            tuple(entry["shape"]),
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(file)
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except FileNotFoundError:
        raise CheckpointError(f"weight file {file.name} is missing from {file.parent}; download it again") from None
    except OSError as error:
        raise CheckpointError(f"weight file {file} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise CheckpointError(f"weight file {file} is corrupt or truncated ({error}); download it again") from None
