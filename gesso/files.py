"""Read files of bounded size without waiting for pipes, and replace files atomically.

Checkpoints, adapters and recipes come from other people. A named pipe in place of `config.json` would block forever. A
huge or deeply nested file would exhaust memory or the stack. The readers here raise the caller's error type instead.
"""

import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from gesso.errors import CheckpointError, GessoError, InputError

JSON_LIMIT = 16 << 20  # bytes of config.json and similar files; the index of a large checkpoint has a few MiB
TEXT_LIMIT = 256 << 20  # bytes of tokenizer.json and of text files that a user names
DEPTH_LIMIT = 64  # levels of nested JSON
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


# --- read ---------------------------------------------------------------------------------------------------------


def read_bytes(path: Path, limit: int = TEXT_LIMIT) -> bytes:
    """Return the content of a regular file. Raise OSError if it is something else or has more than `limit` bytes.

    `/dev/stdin` and `/dev/fd/N` (shell process substitution) are read too: they name open descriptors.
    """
    if re.fullmatch(r"/dev/(stdin|fd/\d+)", str(path)):
        with open(path, "rb") as stream:
            return _bounded(stream, path, limit)
    # Without O_NONBLOCK, opening a named pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    status = os.fstat(descriptor)
    try:
        _check_regular(path, status.st_mode)
    except OSError:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size > limit:
            raise _too_large(path, limit)
        return _bounded(file, path, limit)


def read_text(path: Path, limit: int = TEXT_LIMIT, error: type[GessoError] = InputError) -> str:
    """Return the text of a UTF-8 file with its line ends unchanged."""
    try:
        return read_bytes(path, limit).decode("utf-8")
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise error(
            f"{path} is not UTF-8 text: {problem.reason} at byte {problem.start}; convert it to UTF-8"
        ) from None


def read_json(path: Path, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """Return the JSON object in a checkpoint's file. Numbers may be NaN or infinite; the caller checks each field."""
    try:
        data = parse_json(read_bytes(path, limit).decode("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; a checkpoint directory needs {path.name}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} must contain a JSON object, got {type(data).__name__}")
    return data


def parse_json(text: str, depth: int = DEPTH_LIMIT) -> Any:
    """Parse JSON of bounded depth. Every error is a ValueError, including numbers with thousands of digits."""
    deep = f"it is nested more than {depth} levels deep"
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError(deep) from None
    level: list[Any] = [data]
    for _ in range(depth + 1):
        level = [value for value in level if isinstance(value, dict | list)]
        if not level:
            return data
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]
    raise ValueError(deep)


def check_regular(path: Path) -> None:
    """Raise OSError unless this is a regular file; for libraries that open the path themselves."""
    _check_regular(path, os.stat(path).st_mode)


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "of an unknown kind")
        raise OSError(errno.EINVAL, f"it is {kind}, expected a regular file", str(path))


def _bounded(file: BinaryIO, path: Path, limit: int) -> bytes:
    data = file.read(limit + 1)
    if len(data) > limit:
        raise _too_large(path, limit)
    return data


def _too_large(path: Path, limit: int) -> OSError:
    size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"
    return OSError(errno.EFBIG, f"it is larger than {size}, the limit for such a file", str(path))


# --- write --------------------------------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path, *, check: Callable[[], None] = lambda: None) -> Iterator[BinaryIO]:
    """Yield a new file that replaces `path` when the block succeeds; after an error, `path` is unchanged.

    The new file has an unpredictable name in the same directory and is created exclusively, so it never follows a
    symbolic link. It gets the mode, and if permitted the owner, of the file that it replaces. `check` runs right before
    the rename and may raise to keep the old file.
    """
    before = path.stat() if path.exists() else None
    unfinished = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(unfinished, flags, 0o666 if before is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if before is not None:
                _copy_ownership(file, before)
            os.fsync(file.fileno())
        check()
        os.replace(unfinished, path)
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()


def _copy_ownership(file: BinaryIO, before: os.stat_result) -> None:
    if not hasattr(os, "fchmod"):
        return
    mode = stat.S_IMODE(before.st_mode)
    try:
        os.fchown(file.fileno(), before.st_uid, before.st_gid)
    except PermissionError:
        mode &= 0o777  # set-id bits must not pass to another owner
    os.fchmod(file.fileno(), mode)
