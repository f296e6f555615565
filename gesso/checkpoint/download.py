"""Download one file of a hub repository: continue an interrupted download, and accept only the right size and hash."""

import hashlib
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gesso.checkpoint.cache import PARTIAL, ManifestEntry
from gesso.errors import CheckpointError

Advance = Callable[[int], None]  # reports bytes
PIECE = 1 << 22  # bytes that are hashed at a time
SPARE = 10**8  # bytes to leave free, for the manifest and other small files


def download(url: str, target: Path, entry: ManifestEntry, headers: dict[str, str], advance: Advance) -> None:
    """Download a file, or the missing end of one, and give it its name once size and hash are right.

    An interrupted transfer leaves its bytes in the same directory as the target. A wrong file is deleted.
    """
    from huggingface_hub.file_download import http_get  # continues a file, which hf_hub_download does not

    partial = target.with_name(target.name + PARTIAL)
    target.parent.mkdir(parents=True, exist_ok=True)
    if partial.exists() and partial.stat().st_size > entry.size:
        partial.unlink()
    try:
        with partial.open("ab") as file:
            present = file.tell()
            advance(present)
            http_get(
                url, file, resume_size=present, headers=headers, expected_size=entry.size, tqdm_class=_bar(advance)
            )  # fmt: skip
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        # Only the check of the size raises OSError itself without an error number. Its file cannot be continued: the
        # hub has no more bytes to send.
        if type(error) is OSError and error.errno is None:
            partial.unlink(missing_ok=True)
            raise CheckpointError(f"{url} does not have the size that the hub lists, {entry.size} bytes") from error
        raise
    downloaded_hash = hash_of(partial, entry)
    if downloaded_hash != entry.hash:
        partial.unlink()
        raise CheckpointError(
            f"{url} arrived damaged: its hash is {downloaded_hash}, and the hub lists {entry.hash}; it was deleted, "
            "download it again"
        )
    os.replace(partial, target)


def first_bytes(url: str, count: int, headers: dict[str, str]) -> bytes:
    """Return the first bytes of a file without downloading the rest."""
    from huggingface_hub.file_download import http_get

    content = io.BytesIO()
    http_get(
        url,
        content,
        headers={**headers, "Range": f"bytes=0-{count - 1}"},
        expected_size=count,
        tqdm_class=_bar(lambda _: None),
    )
    return content.getvalue()


def hash_of(path: Path, entry: ManifestEntry) -> str:
    """Return the hash of a file, of the kind that the entry has: SHA-256, or the SHA-1 of a Git blob."""
    if len(entry.hash) == 64:
        content = hashlib.sha256()
    else:
        content = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            content.update(piece)
    return content.hexdigest()


def check_space(missing: int, directory: Path, name: str) -> None:
    """Raise an error if the file system of a directory, which need not exist, has too little space."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if missing + SPARE > free:
        raise CheckpointError(
            f"{name} needs {missing / 1e9:.1f} GB more on disk, and {existing} has {free / 1e9:.1f} GB free; nothing "
            "was downloaded. Free some space (gesso models, gesso rm), or set HF_HOME to a directory on a larger disk"
        )


class _Bar:
    """The part of tqdm's interface that huggingface_hub uses, without any output."""

    advance: Advance

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, count: int) -> None:
        type(self).advance(count)

    def close(self) -> None: ...


def _bar(advance: Advance) -> Any:
    """Return a subclass of `_Bar` that reports bytes to a function: huggingface_hub takes a class."""
    return type("Bar", (_Bar,), {"advance": staticmethod(advance)})
