"""Commands that need Unix: the server forks and limits processes, and typing into a chat needs `readline`."""

import sys

from gesso.errors import GessoError

PAGE = "docs/guides/platforms.md"


def reject_windows(command: str) -> None:
    """Raise an error on Windows that names the way to run the command there."""
    if sys.platform == "win32":
        raise GessoError(f"{command} does not run on Windows itself; run it on Linux in WSL 2, as {PAGE} describes")
