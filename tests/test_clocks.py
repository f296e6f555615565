"""The wall clock, which an administrator or a time server may set, decides nothing."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gesso"
# Files that read the wall clock, with the reason: times that are only shown, or the date of a chat template.
SHOWN = {
    "chat/template.py": "strftime_now",
    "serve/http/app.py": "created",
    "serve/ollama.py": "created_at",
    "serve/openai/chunks.py": "created",
    "serve/openai/edits.py": "created",
    "serve/openai/responses.py": "created_at",
}
MAY_READ = re.compile(r"from time import|\b(?:time\.time|time_ns|now|utcnow|today)\b")
READERS = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}


def reads_wall_clock(source: str) -> bool:
    """Return whether a file names a function that returns the time of day."""
    if not MAY_READ.search(source):  # parsing every file takes seconds
        return False
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and any((node.module, alias.name) in READERS for alias in node.names):
            return True
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if (owner, node.attr) in READERS:
                return True
    return False


def test_no_duration_deadline_or_expiry_is_taken_from_the_wall_clock():
    readers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if reads_wall_clock(path.read_text(encoding="utf-8"))
    }
    assert readers == set(SHOWN)


@pytest.mark.parametrize("source", ["import time\ntime.time()", "from time import time", "datetime.datetime.now()"])
def test_readers_of_the_wall_clock_are_recognized(source):
    assert reads_wall_clock(source) and not reads_wall_clock("import time\ntime.monotonic()")
