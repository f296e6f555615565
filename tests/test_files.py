"""Read bounded regular files and replace files atomically."""

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from gesso import files
from gesso.errors import CheckpointError, InputError
from gesso.eval.sudoku.puzzles import read_puzzles
from gesso.serve.keys import read_keys
from gesso.train import recipe
from tests.other_process import other_process_with


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_only_regular_files_are_read(tmp_path, pipe):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert files.read_bytes(tmp_path / "file") == files.read_bytes(tmp_path / "link") == b"abc"
    for path, words in ((pipe, "named pipe"), (tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(OSError, match=words):
            files.read_bytes(path)
    with pytest.raises(OSError, match="character device"):
        files.read_bytes(type(tmp_path)("/dev/zero"))


def test_open_descriptor_is_read_by_its_name(tmp_path):
    """Process substitution, as in `gesso infill <(command)`, passes the name of an open pipe."""
    reading, writing = os.pipe()
    os.write(writing, b"from a command")
    os.close(writing)
    assert files.read_text(type(tmp_path)(f"/dev/fd/{reading}")) == "from a command"
    os.close(reading)


def test_file_at_the_size_limit_is_read_and_one_beyond_is_rejected(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 10)
    assert len(files.read_bytes(tmp_path / "file", 10)) == 10
    with pytest.raises(OSError, match="larger than 9 bytes"):
        files.read_bytes(tmp_path / "file", 9)


def test_every_reader_rejects_a_named_pipe_without_waiting(pipe):
    for read in (files.read_text, recipe.load, read_keys, lambda path: list(read_puzzles(path))):
        with pytest.raises(InputError, match="named pipe"):
            read(pipe)
    with pytest.raises(CheckpointError, match="named pipe"):
        files.read_json(pipe)


@pytest.mark.parametrize("text", ["a = " + "[" * 10_000, "a = " + "9" * 5000, "a = \x00", "\udcff"])
def test_unparsable_recipe_is_an_input_error(tmp_path, text):
    (tmp_path / "recipe.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match="cannot be read as TOML"):
        recipe.load(tmp_path / "recipe.toml")


def test_json_at_the_depth_limit_is_parsed():
    assert files.parse_json("[" * files.DEPTH_LIMIT + "]" * files.DEPTH_LIMIT)
    with pytest.raises(ValueError, match="64 levels"):
        files.parse_json("[" * (files.DEPTH_LIMIT + 1) + "]" * (files.DEPTH_LIMIT + 1))


def test_replacing_keeps_the_mode_and_leaves_no_other_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with files.replacing(path) as new:
        new.write(b"new")
        (unfinished,) = set(os.listdir(tmp_path)) - {"file"}
        assert stat.S_IMODE((tmp_path / unfinished).stat().st_mode) == 0o600, "private until it is complete"
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["file"]


def test_new_file_has_the_mode_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with files.replacing(tmp_path / "file") as new:
            new.write(b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_private_file_is_for_its_owner_only(tmp_path):
    (tmp_path / "old").touch(0o644)
    for name in ("old", "new"):
        with files.replacing(tmp_path / name, private=True) as new:
            new.write(b"new")
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_error_while_writing_or_checking_keeps_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def refuse() -> None:
        raise InputError("no")

    with pytest.raises(InputError), files.replacing(path, check=refuse) as new:
        new.write(b"new")
    with pytest.raises(ZeroDivisionError), files.replacing(path):
        raise ZeroDivisionError
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


# --- directories --------------------------------------------------------------------------------------------------


def test_a_directory_is_on_disk_before_it_gets_its_name_and_its_name_afterwards(tmp_path, monkeypatch):
    events, sync, rename = [], os.fsync, Path.rename
    inodes = {}

    def synced(descriptor):
        events.append(inodes.get(os.fstat(descriptor).st_ino))
        sync(descriptor)

    def renamed(path, target):
        result = rename(path, target)
        events.append("renamed")
        return result

    # The order cannot be read from the disk afterwards.
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)  # see above
    with files.replacing_directory(tmp_path / "target") as directory:
        (directory / "inner").mkdir()
        (directory / "inner" / "b").write_text("b")
        (directory / "a").write_text("a")
        paths = {"a": directory / "a", "inner/b": directory / "inner" / "b", "inner": directory / "inner"}
        paths |= {"directory": directory, "parent": tmp_path}
        inodes |= {path.stat().st_ino: name for name, path in paths.items()}
    assert set(events[:-2]) == {"a", "inner/b", "inner", "directory"} and events[-2:] == ["renamed", "parent"]
    assert (tmp_path / "target" / "inner" / "b").read_text() == "b"


def test_an_error_while_writing_a_directory_keeps_the_old_one(tmp_path):
    target = tmp_path / "target"
    for content in ("old", "new"):
        with files.replacing_directory(target) as directory:
            (directory / "file").write_text(content)
    with pytest.raises(KeyError), files.replacing_directory(target) as directory:
        (directory / "file").write_text("newest")
        raise KeyError
    assert (target / "file").read_text() == "new" and list(tmp_path.iterdir()) == [target]


def test_the_old_directory_is_deleted_after_the_new_one_has_its_name(tmp_path, monkeypatch):
    """Deleting a model takes seconds. A process that is killed meanwhile must leave the old one or the new one."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").write_text("old")
    remove, seen = shutil.rmtree, []

    def watched(path, **options):
        seen.append((target / "file").read_text())
        remove(path, **options)

    monkeypatch.setattr(files.shutil, "rmtree", watched)  # a process cannot be killed at this moment
    with files.replacing_directory(target) as directory:
        (directory / "file").write_text("new")
    assert set(seen) == {"new"} and list(tmp_path.iterdir()) == [target]


def test_only_unfinished_files_and_directories_are_abandoned(tmp_path):
    token = "0123456789abcdef"
    (tmp_path / f".out.{token}.partial").mkdir()
    (tmp_path / f".out.{token}.partial" / "file").write_text("x")
    (tmp_path / f".out.{token[::-1]}.partial").write_text("x")
    (tmp_path / f".other.{token}.partial").mkdir()
    kept = {"out", ".out", ".out.partial", f".out.{token}", f"out.{token}.partial", f".out.{token[1:]}.partial"}
    for name in kept:
        (tmp_path / name).write_text("x")
    files.remove_abandoned(tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == kept | {f".other.{token}.partial"}
    files.remove_all_abandoned(tmp_path, suffix="er.txt")
    assert (tmp_path / f".other.{token}.partial").exists()
    lock = files.lock_of(tmp_path / "other")
    with other_process_with(lock):
        files.remove_all_abandoned(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == kept | {f".other.{token}.partial", lock.name}
    assert lock.exists(), "the process was killed"
    files.remove_all_abandoned(tmp_path, suffix="er")
    assert {path.name for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "x"), "No space left on device"),
        (OSError(errno.EDQUOT, "x"), "Disk quota exceeded"),
        (RuntimeError("Error while serializing: I/O error: No space (os error 28)"), "No space left on device"),
        (OSError(errno.ENOENT, "x"), None),
        (RuntimeError("os error 28"), None),
    ],
)
def test_a_full_disk_is_recognized_whichever_library_wrote(error, reason):
    assert files.full_disk(error) == reason
