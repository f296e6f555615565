"""A plugin of pytest that notes the lines of the source that each test executes; see `tools/mutate.py`.

In a child process of a test there is no pytest, so its lines belong to the file of the test that started it.
"""

import atexit
import json
import os
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("gesso/model", "gesso/diffusion", "gesso/engine", "gesso/requests", "gesso/serve", "gesso/constraints",
           "gesso/train/objective")  # fmt: skip
ROOTS = tuple(str(ROOT / source) for source in SOURCES)
_executed: set[tuple[CodeType, int]] = set()


def _on_call(frame: FrameType, event: str, argument: Any) -> Any:
    """Trace the functions of the source, and no others."""
    return _on_line if frame.f_code.co_filename.startswith(ROOTS) else None


def _on_line(frame: FrameType, event: str, argument: Any) -> Any:
    if event == "line":
        _executed.add((frame.f_code, frame.f_lineno))
    return _on_line


def _start() -> None:
    threading.settrace(_on_call)
    sys.settrace(_on_call)


def _write(test: str, seconds: float) -> None:
    """Append the lines since the last call to the file of this process."""
    lines: defaultdict[str, set[int]] = defaultdict(set)
    for code, line in _executed.copy():
        lines[os.path.relpath(code.co_filename, ROOT)].add(line)
    _executed.clear()
    entry = {"test": test, "seconds": round(seconds, 3), "lines": {name: sorted(lines[name]) for name in lines}}
    with open(Path(os.environ["GESSO_EXECUTED_LINES"]) / f"{os.getpid()}.jsonl", "a", encoding="utf-8") as out:
        out.write(json.dumps(entry) + "\n")


def start_in_child() -> None:
    """Note the lines of a process that a test has started. They are written when it exits or is terminated."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if not test or "pytest" in sys.argv[0]:
        return
    file = test.partition("::")[0]
    atexit.register(lambda: _write(file, 60.0))
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if "GESSO_EXECUTED_LINES" not in os.environ:
        return (yield)
    _executed.clear()
    _start()
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        _write(item.nodeid, item.stash.get(_SECONDS, 0.0))


_SECONDS = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    item.stash[_SECONDS] = item.stash.get(_SECONDS, 0.0) + call.duration
    report = yield
    if report.failed and "GESSO_FIRST_FAILURE" in os.environ:
        Path(os.environ["GESSO_FIRST_FAILURE"]).write_text(item.nodeid + "\n", encoding="utf-8")
    return report
