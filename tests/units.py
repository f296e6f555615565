"""Units of work of pytest-xdist: a test file, or the files that share a server or a browser.

One process runs all files of a unit, one after another, so that what they share starts once.
"""

from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
DIRECTORIES = {"attack/": "attacked server", "serve/studio/": "studio"}  # whose conftest.py has a server or a browser
# By the name of a shared server in the files that use it. Tests of the studio use the last two.
SHARED = {
    "server_fixture()": "plain server",
    "server_with_keys": "server with keys",
    "bundled_server": "studio",
    "seeing_server": "studio",
}


@cache
def unit(file: str) -> str:
    """Return the name of the unit that a test file belongs to. The path is relative to `tests`."""
    for directory, name in DIRECTORIES.items():
        if file.startswith(directory):
            return name
    source = (TESTS / file).read_text(encoding="utf-8")
    return next((name for server, name in SHARED.items() if server in source), file)


def scheduler(config: Any, log: Any) -> Any:
    """Return a scheduler that gives each process whole units."""
    from xdist.scheduler import LoadFileScheduling

    class UnitScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(super()._split_scope(nodeid).removeprefix("tests/"))

    return UnitScheduling(config, log)
