"""Read files of bounded size without waiting for pipes, and replace files and directories atomically.

Checkpoints, adapters and recipes come from other people. A named pipe in place of `config.json` would block forever. A
huge or deeply nested file would exhaust memory or the stack. The readers here raise the caller's error type instead.
"""

import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from gesso.errors import CheckpointError, GessoError, InputError

try:
    import fcntl
except ImportError:  # Windows: neither locks, nor removes what killed processes have left
    fcntl = None  # type: ignore[assignment]

JSON_LIMIT = 16 << 20  # bytes of config.json and similar files; the index of a large checkpoint has a few MiB
TEXT_LIMIT = 256 << 20  # bytes of tokenizer.json and of text files that a user names
DEPTH_LIMIT = 64  # levels of nested JSON
LONGEST = 100  # characters of a name in that of its unfinished version
UNFINISHED = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.partial(\.lock)?", re.DOTALL)  # or its lock
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}  # of file systems without locks
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
def replacing(path: Path, *, check: Callable[[], None] = lambda: None, private: bool = False) -> Iterator[BinaryIO]:
    """Yield a new file that replaces `path` when the block succeeds; after an error, `path` is unchanged.

    The new file has an unpredictable name in the same directory and is created exclusively, so it never follows a
    symbolic link. It gets the mode, and if permitted the owner, of the file that it replaces. A `private` file is for
    its owner only. `check` runs right before the rename and may raise to keep the old file.
    """
    before = path.stat() if path.exists() and not private else None
    unfinished = _unfinished(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(unfinished, flags, 0o600 if private or before is not None else 0o666)
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


def _unfinished(path: Path) -> Path:
    """Return a hidden, unpredictable name in the same directory."""
    return path.with_name(f".{path.name[:LONGEST]}.{secrets.token_hex(8)}.partial")


def _copy_ownership(file: BinaryIO, before: os.stat_result) -> None:
    if not hasattr(os, "fchmod"):
        return
    mode = stat.S_IMODE(before.st_mode)
    try:
        os.fchown(file.fileno(), before.st_uid, before.st_gid)
    except PermissionError:
        mode &= 0o777  # set-id bits must not pass to another owner
    os.fchmod(file.fileno(), mode)


# --- directories --------------------------------------------------------------------------------------------------


@contextmanager
def replacing_directory(target: Path) -> Iterator[Path]:
    """Yield a new directory that replaces `target` when the block succeeds; after an error, `target` is unchanged.

    All of it is on disk before it gets its name. The old directory is deleted after the new one has its name on disk. A
    process that is killed leaves a hidden directory, for `remove_abandoned`. Between the two renames, neither has the
    name.
    """
    unfinished = _unfinished(target)
    unfinished.mkdir()
    try:
        yield unfinished
        for directory, _, names in os.walk(unfinished):
            for name in names:
                _sync(Path(directory) / name)
            _sync(Path(directory))
        former = _hidden(target)
        unfinished.rename(target)
        _sync(target.parent)
        if former is not None:
            shutil.rmtree(former)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def discard(directory: Path) -> None:
    """Remove a directory, if it exists, so that it is never incomplete under its name."""
    hidden = _hidden(directory)
    if hidden is not None:
        shutil.rmtree(hidden)


def _hidden(directory: Path) -> Path | None:
    """Give a directory the name of an unfinished one, and return it; None if there is no directory."""
    unfinished = _unfinished(directory)
    try:
        directory.rename(unfinished)
    except FileNotFoundError:
        return None
    return unfinished


def remove_abandoned(target: Path) -> None:
    """Remove unfinished versions of a file or directory, which killed processes have left.

    The caller has a lock that keeps other writers out.
    """
    for path in target.parent.iterdir():
        match = UNFINISHED.fullmatch(path.name)
        if match and match["name"] == target.name[:LONGEST]:
            _remove(path)


def remove_all_abandoned(parent: Path, suffix: str = "") -> None:
    """Remove everything unfinished in a directory whose name would end with `suffix`.

    The caller has a lock that keeps other writers out. What another process is writing under its own lock stays.
    """
    for path in list(parent.iterdir()):
        match = UNFINISHED.fullmatch(path.name)
        if match and match["name"].endswith(suffix):
            with suppress(GessoError), locked(lock_of(parent / match["name"])):
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def lock_of(target: Path) -> Path:
    """Return the lock of a file or directory that is written by one command at a time."""
    return target.with_name(f".{target.name[:LONGEST]}.lock")


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock on a file, which exists meanwhile. Raise a GessoError if another process holds it.

    Yield whether there is a lock: some systems have none. It ends with this process, however that ends, and forked
    processes do not inherit it.
    """
    descriptor = _lock(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)  # before another process can lock it
            os.close(descriptor)


def _lock(path: Path) -> int | None:
    if fcntl is None:
        return None
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
            os.close(descriptor)  # the process that held the lock has removed the file
        except OSError as error:
            os.close(descriptor)
            if error.errno in NO_LOCKS:
                return None
            if not isinstance(error, BlockingIOError):
                raise
            raise GessoError(f"another process is writing to {path.parent}; wait for it, or stop it") from None


def _sync(path: Path) -> None:
    """Wait until a file or a directory is on disk."""
    if os.name == "nt":  # syncs only files that are open for writing
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that does not sync directories
            raise
    finally:
        os.close(descriptor)


# --- full disks -----------------------------------------------------------------------------------------------------


FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def full_disk(error: Exception) -> str | None:
    """Return the reason in words if an error is that of a full disk, a quota or a limit of sizes, or else None.

    safetensors raises an error of its own, which has the number of the system's error in its message.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (match := re.search(r"\(os error (\d+)\)", str(error))):
        number = int(match[1])
    return os.strerror(number) if number in FULL else None
