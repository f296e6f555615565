"""`make test-clients`: run clients of other projects against `gesso serve`, and write docs/guides/clients.md.

One server has gesso-mini, and another one a small random model with vision. Each client has an environment of its own
in .clients, because their dependencies conflict; delete it to get the newest versions. JavaScript clients need `node`
and `npm`. `--only NAME` runs some of the clients, and keeps the other rows of the page.

With the variable SUITE naming a directory, the documents and cases of other projects in it are run too: Ollama's API
page as `ollama-api.md`, and a copy of the repository of Open Responses as `openresponses`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gesso.bench.server import running_server
from tools.clients.checks import MODEL, SEEING_MODEL
from tools.clients.environments import CLIENTS, Client, NotInstalled
from tools.clients.page import Row, write
from tools.clients.suites import SUITES

LIMIT = 900  # seconds per client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*CLIENTS, *SUITES], help="may be repeated")
    names = parser.parse_args().only or [*CLIENTS, *SUITES]
    clients = [CLIENTS[name] for name in names if name in CLIENTS]
    installed, rows = install(clients)
    rows += run_installed(installed)
    rows += run_suites([name for name in names if name in SUITES])
    sys.exit(any(row.failed for row in rows))


def install(clients: list[Client]) -> tuple[list[Client], list[Row]]:
    """Install clients. Return those that can be installed, and failed rows of the others."""
    installed = []
    rows = []
    for client in clients:
        try:
            client.install()
            installed.append(client)
        except NotInstalled as error:
            row = Row(client.name, client.names, results={"installation": f"cannot be installed: {error}"})
            record(row)
            rows.append(row)
    return installed, rows


def run_installed(clients: list[Client]) -> list[Row]:
    if not clients:
        return []
    with (
        tempfile.TemporaryDirectory(prefix="gesso-") as directory,
        running_server("--device", "cpu", "--name", MODEL) as server,
        running_server("--device", "cpu", "--name", SEEING_MODEL, "-m", str(vision_model(directory))) as vision,
    ):
        for each in (server, vision):
            each.wait_ready()
        return [run_client(client, [server.url, vision.url]) for client in clients]


def record(row: Row) -> None:
    print(row.line(), flush=True)
    write(row)


def vision_model(directory: str) -> Path:
    from tests.tiny import make

    return make(Path(directory) / "model", sees=True)


def run_client(client: Client, urls: list[str]) -> Row:
    print(f"running {client.name}", file=sys.stderr)
    row = Row(client.name, client.versions(), results=_results(client, urls))
    record(row)
    return row


def _results(client: Client, urls: list[str]) -> dict[str, str]:
    """Return the error of each check; it is empty for one that passed."""
    try:
        done = subprocess.run([*client.command(), *urls], capture_output=True, text=True, timeout=LIMIT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"start": str(error)}
    sys.stderr.write(done.stderr)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"check"')]
    if not lines:
        return {"start": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return {line["check"]: line["error"] for line in lines}


def run_suites(names: list[str]) -> list[Row]:
    """Run the suites whose files are in the directory SUITE, and say which are skipped."""
    directory = os.environ.get("SUITE")
    rows = []
    for name in names:
        suite = SUITES[name]
        if directory is None or not (Path(directory) / suite.file).exists():
            print(f"skipped: {name}, which needs SUITE=directory with {suite.file}", file=sys.stderr)
            continue
        row = Row(name, [], results=suite.run(Path(directory) / suite.file))
        record(row)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
