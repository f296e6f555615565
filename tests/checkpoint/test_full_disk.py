"""Commands whose disk is full, or that are killed while they write: one line, and nothing that looks complete."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gesso.checkpoint.cache import PARTIAL
from gesso.checkpoint.find import find
from gesso.errors import CheckpointError
from tests.full_disk import full_disk
from tests.hub import Hub

NAME = "someone/small"
Main = Callable[..., SimpleNamespace]  # the fixture: the command line in this process
LIMIT = 20_000  # bytes: larger than the configuration of the tiny checkpoint, smaller than its weights
KILL = """
import os, signal, sys
from gesso.checkpoint import write
from gesso.cli.main import main
function = write.write_companions
def write_and_die(*arguments):
    function(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
write.write_companions = write_and_die
main(sys.argv[1:])
"""


def one_line(done: SimpleNamespace) -> str:
    assert done.code == 1
    (line,) = done.err.splitlines()
    return line


@pytest.mark.parametrize("format", ["gesso", "compressed-tensors", "gguf"])
def test_quantize_on_a_full_disk_leaves_nothing_and_names_the_target(
    main: Main, tiny_directory: Path, tmp_path: Path, format: str
) -> None:
    target = tmp_path / "new" / ("model.gguf" if format == "gguf" else "model")
    to = "bf16" if format == "gguf" else "fp8"
    arguments = ("quantize", str(tiny_directory), str(target), "--format", format, "--to", to)
    with full_disk(LIMIT):
        line = one_line(main(*arguments))
    assert line.endswith(f"{target} cannot be written: File too large; free some space and repeat")
    assert list(target.parent.iterdir()) == []
    assert main(*arguments).code == 0 and list(target.parent.iterdir()) == [target]


def test_pull_on_a_full_disk_is_continued_and_never_loadable_before(
    main: Main, hub: Hub, tiny_directory: Path, tmp_path: Path
) -> None:
    hub.add(NAME, tiny_directory)
    with full_disk(LIMIT):
        line = one_line(main("pull", NAME))
    assert f"{NAME} cannot be stored in " in line
    assert line.endswith(": File too large; a download continues where it stopped")
    (partial,) = tmp_path.rglob(f"*{PARTIAL}")
    assert 0 < partial.stat().st_size <= LIMIT
    hub.status["/"] = 503
    with pytest.raises(CheckpointError, match="503"):
        find(NAME)
    hub.status.clear()
    done = main("pull", NAME)
    assert done.code == 0
    directory = Path(done.out.strip())
    for file in ("config.json", "model.safetensors"):
        assert (directory / file).read_bytes() == (tiny_directory / file).read_bytes()


def test_what_a_killed_command_has_left_is_removed_by_the_next_one(
    main: Main, tiny_directory: Path, tmp_path: Path
) -> None:
    target = tmp_path / "model"
    arguments = ("quantize", str(tiny_directory), str(target), "--to", "fp8")
    killed = subprocess.run([sys.executable, "-c", KILL, *arguments])
    assert killed.returncode == -signal.SIGKILL
    assert not target.exists() and len(list(tmp_path.glob(".model.*.partial"))) == 1
    assert main(*arguments).code == 0
    assert list(tmp_path.iterdir()) == [target]
