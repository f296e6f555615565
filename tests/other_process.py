"""Another process that writes into a directory, as far as locks are concerned."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOLD = """
import sys
from pathlib import Path
from gesso.files import locked
with locked(Path(sys.argv[1])):
    print(flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_process_with(lock: Path) -> Iterator[None]:
    """Let another process have a lock. At the end it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "\n"
        yield
    finally:
        process.kill()
        process.communicate()
