"""Fingerprints of the files that a run was started from, to notice on resuming that one of them has changed.

Small files and data files are hashed completely. Of the weights, which have 50 GB at the 26B shape, each tensor's name,
dtype and shape are hashed with 4 KiB from its middle: a few MB to read. A change of a tensor that leaves those bytes as
they are is not noticed. Times of files do not count, so a copy of the files is the same input.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from gesso.checkpoint.safetensors import INDEX
from gesso.checkpoint.source import CheckpointSource
from gesso.checkpoint.transfer import read_into
from gesso.train.recipe import Recipe
from gesso.train.trajectories import recorded_files

SAMPLE = 4096  # bytes of each tensor
COMPANIONS = (".json", ".jinja", ".model")

Fingerprints = dict[str, dict[str, str]]  # of the "data" by name in the recipe, and of the "base" by file name


def fingerprints(recipe: Recipe, base: CheckpointSource, images: Sequence[int] = ()) -> Fingerprints:
    """Return the fingerprints of all data files, and of the base checkpoint's configuration, tokenizer and weights.

    `images` are the digests of the images that the data files name.
    """
    # `data.files` of a generator may name anything.
    names = (*recipe.data.files, *(recipe.held_out.files if recipe.held_out else ()))
    data = {name: digest(Path(name)) for name in names if Path(name).is_file()}
    for name in recipe.distill.trajectories if recipe.distill else ():
        data |= {str(path): digest(path) for path in recorded_files(Path(name).expanduser())}
    if images:
        joined = b"".join(image.to_bytes(16, "big") for image in images)
        data["a picture in the data"] = hashlib.sha256(joined).hexdigest()
    return {"data": data, "base": base_fingerprints(base, weights=not recipe.model.scratch)}


def base_fingerprints(base: CheckpointSource, weights: bool = True) -> dict[str, str]:
    """Return the fingerprints of a checkpoint's configuration, its tokenizer and, by default, its weights."""
    companions = (file for file in base.directory.iterdir() if file.suffix in COMPANIONS and file.name != INDEX)
    files = {file.name: digest(file) for file in sorted(companions) if file.is_file()}
    return files | _weights(base) if weights else files


def changed_input(before: Fingerprints, now: Fingerprints) -> str | None:
    """Return the name of a file that has changed, or None."""
    for kind in ("data", "base"):
        for name in sorted(before[kind] | now[kind]):
            if before[kind].get(name) != now[kind].get(name):
                return name if kind == "data" else f"{name} of the base checkpoint"
    return None


def digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _weights(base: CheckpointSource) -> dict[str, str]:
    stored, _ = base.headers
    digests = {part.file.name: hashlib.sha256() for part in stored.values()}
    for part in stored.values():
        sample = bytearray(min(SAMPLE, part.nbytes))
        read_into(memoryview(sample), part, part.offset + (part.nbytes - len(sample)) // 2)
        digests[part.file.name].update(repr((part.name, part.dtype, part.shape)).encode() + sample)
    return {name: digest.hexdigest() for name, digest in digests.items()}
