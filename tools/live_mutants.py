"""Mutants in processes that a test has started, such as those of a server, for `tools/forked_mutants.py`.

Such a process notes the mutated lines that it executes. At a signal it becomes another mutant, or the original.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from tools import mutate
from tools.mutate import Mutant

DIRECTORY = "GESSO_LIVE_MUTANTS"  # environment variable
PATIENCE = 20.0  # seconds until a process has answered a signal
STARTUP = """\
import os

if "PYTEST_CURRENT_TEST" in os.environ:  # in a process of a test, not in pytest itself
    from tools import live_mutants

    live_mutants.start()
"""


# --- in pytest --------------------------------------------------------------------------------------------------------


class Processes:
    """The processes that the tests have started."""

    def __init__(self, directory: Path, mutants: Sequence[Mutant]) -> None:
        self.directory = directory
        for name in ("pids", "answers", "lines"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        lines: dict[str, list[int]] = {}
        for mutant in mutants:
            lines.setdefault(mutant.file, []).extend(mutant.lines)
        (directory / "watched.json").write_text(json.dumps(lines), encoding="utf-8")
        (directory / "sitecustomize.py").write_text(STARTUP, encoding="utf-8")
        os.environ[DIRECTORY] = str(directory)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])

    def begin(self) -> None:
        """Forget the executed lines."""
        for file in (self.directory / "lines").iterdir():
            file.unlink()
        self._signal({"mutant": None})

    def lines(self) -> dict[str, set[int]]:
        """Return the watched lines that were executed, by file."""
        executed: dict[str, set[int]] = {}
        for part in (self.directory / "lines").iterdir():
            for entry in part.read_text(encoding="utf-8").splitlines():
                file, _, line = entry.partition(":")
                executed.setdefault(file, set()).add(int(line))
        return executed

    def become(self, mutant: Mutant | None) -> bool:
        """Return whether there are processes, and all of them have become a mutant."""
        return self._signal({"mutant": mutant and asdict(mutant)})

    def _signal(self, command: dict[str, Any]) -> bool:
        (self.directory / "command.json").write_text(json.dumps(command), encoding="utf-8")
        for file in (self.directory / "answers").iterdir():
            file.unlink()
        waiting = {pid for pid in map(int, os.listdir(self.directory / "pids")) if self._signalled(pid)}
        found = bool(waiting)
        end = time.monotonic() + PATIENCE
        while waiting and time.monotonic() < end:
            waiting -= set(map(int, os.listdir(self.directory / "answers")))
            waiting = {pid for pid in waiting if Path(f"/proc/{pid}").exists()}
            time.sleep(0.01)
        return found and not waiting

    def _signalled(self, pid: int) -> bool:
        try:
            os.kill(pid, signal.SIGUSR1)
        except ProcessLookupError:
            (self.directory / "pids" / str(pid)).unlink()
            return False
        return True


# --- in a process of a test -------------------------------------------------------------------------------------------

_directory = Path(os.environ.get(DIRECTORY, ""))
_watched: dict[str, frozenset[int]] = {}
_executed: set[tuple[int, str, int]] = set()
_replaced: list[tuple[FunctionType, CodeType]] = []


def start() -> None:
    """Watch the lines of this process and of its forks, and wait for signals."""
    if DIRECTORY not in os.environ:
        return
    for file, lines in json.loads((_directory / "watched.json").read_text(encoding="utf-8")).items():
        _watched[str(mutate.ROOT / file)] = frozenset(lines)
    signal.signal(signal.SIGUSR1, _on_signal)
    (_directory / "pids" / str(os.getpid())).touch()
    threading.settrace(_on_call)
    sys.settrace(_on_call)


def _on_call(frame: FrameType, event: str, argument: Any) -> Any:
    return _on_line if frame.f_code.co_filename in _watched else None


def _on_line(frame: FrameType, event: str, argument: Any) -> Any:
    file, line = frame.f_code.co_filename, frame.f_lineno
    entry = (os.getpid(), file, line)
    if event == "line" and line in _watched[file] and entry not in _executed:
        _executed.add(entry)
        with open(_directory / "lines" / str(os.getpid()), "a", encoding="utf-8") as out:  # a fork may end at any time
            out.write(f"{os.path.relpath(file, mutate.ROOT)}:{line}\n")
    return _on_line


def _on_signal(number: int, frame: FrameType | None) -> None:
    from tools.forked_mutants import replacement

    command = json.loads((_directory / "command.json").read_text(encoding="utf-8"))
    _executed.clear()
    while _replaced:
        function, code = _replaced.pop()
        function.__code__ = code
    if command["mutant"] is not None:
        found = replacement(Mutant(**command["mutant"]))
        if found is not None:
            function, code = found
            _replaced.append((function, function.__code__))
            function.__code__ = code
    (_directory / "answers" / str(os.getpid())).touch()
