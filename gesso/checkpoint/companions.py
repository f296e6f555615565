"""The companion files of a GGUF file, unpacked into a directory of their own.

A GGUF file holds configuration, tokenizer and chat template in its header. They are converted once to the files of a
Hugging Face directory, which the tokenizer and the server read like any other. The directory is in the user's cache.
"""

import atexit
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

VERSION = 1  # increase it when the companion files of a GGUF change


def directory_of(path: Path) -> Path:
    """Return the directory with the companion files of a GGUF file."""
    target = _cache() / _key(path)
    return target if target.is_dir() else _unpack(path, target)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gesso" / "gguf"


def _key(path: Path) -> str:
    """Return a name that changes with the file, with files beside it that take precedence, and with VERSION."""
    from gesso.checkpoint.gguf.companions import OVERRIDING

    # Files of the hub are links, and the files beside such a file are those beside the link.
    files = [path.resolve(), *(path.absolute().with_name(name) for name in OVERRIDING)]
    states = [(str(file), status.st_size, status.st_mtime_ns) for file in files if (status := _status(file))]
    return hashlib.sha256(repr((VERSION, states)).encode()).hexdigest()[:32]


def _status(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None


def _unpack(path: Path, target: Path) -> Path:
    from gesso.checkpoint.gguf.companions import companions

    texts = companions(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    except OSError:  # no home directory, or a read-only one
        partial = target = Path(tempfile.mkdtemp(prefix="gesso-"))
        atexit.register(shutil.rmtree, partial, ignore_errors=True)
    try:
        for name, text in texts.items():
            (partial / name).write_text(text, encoding="utf-8")
        if partial != target:
            partial.rename(target)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not target.is_dir():  # otherwise another process was faster
            raise
    return target
