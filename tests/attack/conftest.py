"""The server under attack."""

import pytest

from tests.attack.watching import BAD, GOOD, LIMITS, ask, short
from tests.serving import serving
from tools.load import processes


@pytest.fixture(scope="session")
def server(served_model, tmp_path_factory):
    """Start a server of the tiny model with two keys, shared by all tests of a process."""
    log = tmp_path_factory.mktemp("attack") / "log"
    with serving(log, "--model", str(served_model), *LIMITS, GESSO_API_KEYS=f"{GOOD},{BAD}") as running:
        running.http.headers["Authorization"] = f"Bearer {GOOD}"
        running.wait_ready()
        ask(running, short())
        ask(running, short(choice=["yes", "no"]))
        running.warm_processes = len(processes.descendants(running.process.pid))
        yield running
