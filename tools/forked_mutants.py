"""A plugin of pytest that runs each test again for every mutant of a line that it executes; see `tools/mutate.py`.

Each run is a fork of the process in which modules and the fixtures of the module are ready, so it costs only the test
itself. The first fork runs the test as it is, and notes the lines. In each of the others the code of one function is
replaced by its mutant.
"""

import functools
import importlib
import inspect
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest
from _pytest.runner import call_and_report, runtestprotocol

from tools import mutate
from tools.live_mutants import Processes
from tools.mutate import Mutant, Results, Trial, Verdict

MOST_TESTS = 30  # functions that run with one mutant; afterwards it is left for `python -m tools.mutate files`
MOST_PARAMETERS = 3  # of one function
HANG = 6.0  # seconds of processor time, and ten times what the test takes
STILL = 90.0  # seconds without any of them


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Write the name of the test that failed, for `python -m tools.mutate files`."""
    report = yield
    if report.failed and "GESSO_FIRST_FAILURE" in os.environ:
        Path(os.environ["GESSO_FIRST_FAILURE"]).write_text(item.nodeid + "\n", encoding="utf-8")
    return report


def pytest_configure(config: pytest.Config) -> None:
    if "GESSO_MUTANTS" in os.environ:
        config.pluginmanager.register(Forks(Results(Path(os.environ["GESSO_MUTANTS"]))))


class Forks:
    """The runs of all tests of a process."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.tried = {trial.test for trial in results.trials()}
        self.processes = Processes(results.directory / f"processes-{os.getpid()}", results.left())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the order of the files on the command line."""
        places = {
            str(Path(argument.partition("::")[0]).resolve()): i for i, argument in reversed([*enumerate(config.args)])
        }
        items.sort(key=lambda item: min(places.get(str(path), len(places)) for path in (item.path, *item.path.parents)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Function, nextitem: pytest.Item | None) -> bool:
        left = self._left(item.nodeid.partition("[")[0])
        if item.nodeid in self.tried or not left:
            item.session._setupstate.teardown_exact(nextitem)
            return True
        after = _in_module_of(item, nextitem)  # what is set up for the module stays for the forks
        try:
            if call_and_report(item, "setup", log=False).passed:
                item.session._setupstate.teardown_exact(after)
                item._request = False
                self._try_all(item, after, left)
        finally:
            item.session._setupstate.teardown_exact(nextitem)
        return True

    def _left(self, function: str) -> list[Mutant]:
        """Return the mutants for a test."""
        passed = self.results.passed()
        functions = Counter(key for key, _ in passed)
        return [
            mutant
            for mutant in self.results.left()
            if functions[mutant.key] < MOST_TESTS and passed[mutant.key, function] < MOST_PARAMETERS
        ]

    def _try_all(self, item: pytest.Function, after: pytest.Item | None, left: list[Mutant]) -> None:
        self.processes.begin()
        reached, seconds = _reached(item, after, left)
        lines = self.processes.lines() if reached is not None else {}
        live = {mutant.key for mutant in left if lines.get(mutant.file, set()) & mutant.lines}
        tried = [mutant for mutant in left if mutant.key in live | (reached or set())]
        passed = []
        for mutant in tried:
            importlib.import_module(_module(mutant))  # here, once for all forks
            is_live = mutant.key in live and self.processes.become(mutant)
            code = forked(partial(_run_with, mutant, item, after, is_live), HANG + 10 * seconds)
            if is_live:
                self.processes.become(None)
            if code == 0:
                passed.append(mutant.key)
            elif code != UNCHANGED and (
                (not is_live and code != HUNG) or forked(partial(_run, item, after), 600.0) == 0
            ):
                by = item.nodeid + (" (hang)" if code == HUNG else "")
                self.results.add(Verdict(key=mutant.key, caught_by=by))
        self.results.add(Trial(test=item.nodeid, passed=passed))
        print(f"{seconds:.1f} {item.nodeid}: {len(passed)} of {len(tried)} passed", file=sys.__stderr__, flush=True)


# --- one fork ---------------------------------------------------------------------------------------------------------

UNCHANGED, HUNG = 90, 91


def forked(run: Callable[[], int], limit: float) -> int:
    """Return the result of a function in a fork, `HUNG`, or `UNCHANGED` after an error in these tools."""
    pid = os.fork()
    if pid == 0:
        code = UNCHANGED
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 2))
            code = run()
        finally:
            os._exit(code)
    used, since = 0, time.monotonic()
    while time.monotonic() - since < STILL:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return HUNG if code in (-signal.SIGXCPU, -signal.SIGKILL) else code
        now = _ticks(pid)
        if now > used:
            used, since = now, time.monotonic()
        time.sleep(0.005 if time.monotonic() - since < 1 else 0.2)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return HUNG


def _ticks(pid: int) -> int:
    """Return the processor time that a process has used, in ticks."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


def _run(item: pytest.Function, after: pytest.Item | None) -> int:
    return int(any(report.failed for report in runtestprotocol(item, log=False, nextitem=after)))


def _run_with(mutant: Mutant, item: pytest.Function, after: pytest.Item | None, is_live: bool) -> int:
    return _run(item, after) if replace(mutant) or is_live else UNCHANGED


def _reached(item: pytest.Function, after: pytest.Item | None, left: list[Mutant]) -> tuple[set[str] | None, float]:
    """Return the mutants whose lines a test executes, and the processor time that it takes; None if it fails in a
    fork, such as one with threads of its module."""
    began = os.times()
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as file:
        code = forked(partial(_run_traced, item, after, left, Path(file.name)), 600.0)
        keys = set(file.read().splitlines())
    ended = os.times()
    seconds = ended.children_user + ended.children_system - began.children_user - began.children_system
    return keys if code == 0 else None, seconds


def _run_traced(item: pytest.Function, after: pytest.Item | None, mutants: list[Mutant], reached: Path) -> int:
    """Run a test, and write the mutants whose lines it executes."""
    files = {str(mutate.ROOT / mutant.file): set[int]() for mutant in mutants}

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        lines = files.get(frame.f_code.co_filename)
        if lines is None:
            return None

        def on_line(frame: FrameType, event: str, argument: Any) -> Any:
            lines.add(frame.f_lineno)
            return on_line

        return on_line

    threading.settrace(on_call)
    sys.settrace(on_call)
    try:
        code = _run(item, after)
    finally:
        sys.settrace(None)
    keys = [mutant.key for mutant in mutants if files[str(mutate.ROOT / mutant.file)] & mutant.lines]
    reached.write_text("\n".join(keys), encoding="utf-8")
    return code


def _in_module_of(item: pytest.Item, nextitem: pytest.Item | None) -> pytest.Item | None:
    """Return another test of the module, if there is one."""
    others = (other for other in item.session.items if other is not item and other.parent is item.parent)
    return next(others, nextitem)


# --- replacing a function ---------------------------------------------------------------------------------------------


def _module(mutant: Mutant) -> str:
    return mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def replace(mutant: Mutant) -> bool:
    """Replace the code of the function around a mutant. Return False if it has no name in its module."""
    found = replacement(mutant)
    if found is not None:
        function, function.__code__ = found
    return found is not None


def replacement(mutant: Mutant) -> tuple[FunctionType, CodeType] | None:
    """Return the function around a mutant, and its code with the mutant."""
    path = mutate.ROOT / mutant.file
    source = path.read_bytes()
    changed = source[: mutant.start] + mutant.after.encode() + source[mutant.end :]
    code = _around(compile(changed, str(path), "exec", dont_inherit=True), mutant.line)
    function = _named(importlib.import_module(_module(mutant)), code) if code else None
    if function is None or code is None or function.__code__.co_freevars != code.co_freevars:
        return None
    return function, code


def _around(code: CodeType, line: int) -> CodeType | None:
    """Return the outermost function around a line."""
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    # A function's line is that of its first decorator.
    before = [part for part in inner if part.co_firstlineno <= line]
    if not before:
        return None
    nearest = max(before, key=lambda part: part.co_firstlineno)
    is_class = not nearest.co_flags & inspect.CO_OPTIMIZED
    return _around(nearest, line) if is_class else nearest


def _named(module: ModuleType, code: CodeType) -> FunctionType | None:
    """Return the function of a module whose code is replaced, without its decorators."""
    value: Any = module
    for name in code.co_qualname.split("."):
        value = vars(value).get(name)
        if value is None:
            return None
    while not isinstance(value, FunctionType) or hasattr(value, "__wrapped__"):
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, functools.cached_property):
            value = value.func
        elif hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        else:
            return None
    return value if value.__code__.co_firstlineno == code.co_firstlineno else None
