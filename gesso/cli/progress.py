"""The progress of counted work on stderr: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from gesso.cli.terminal import note

INTERVAL = 10.0  # seconds between plain lines


@contextmanager
def show_progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with (done, total). Work shorter than INTERVAL prints no plain line."""
    terminal, printed = sys.stderr.isatty(), time.monotonic()
    with Progress(console=Console(stderr=True), transient=True, disable=not terminal) as bar:
        shown = bar.add_task(label, total=None)

        def update(done: int, total: int) -> None:
            nonlocal printed
            bar.update(shown, completed=done, total=total)
            now = time.monotonic()
            if not terminal and now - printed >= INTERVAL:
                printed = now
                note(f"{label}: {done:,} of {total:,}")

        yield update
