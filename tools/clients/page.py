"""The page of tested clients, which the run of the clients writes."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

PAGE = Path("docs/guides/clients.md")
START = """# Tested clients

<!-- Written by make test-clients. -->

`make test-clients` installs the newest versions of these clients, each in an environment of its own, and runs them
against a server with gesso-mini, and with images against one with a small random model that has vision. It then writes
this page. With `SUITE=DIRECTORY` it also runs what other projects publish about these APIs: every command of Ollama's
API page as it is written there, and the compliance cases of Open Responses that need no WebSocket and no compaction.

"""
HEAD = "| Client | Versions | Date | Checks | Result |\n|---|---|---|---|---|\n"


@dataclass(frozen=True)
class Row:
    """The results of one client: the error of each check, empty for one that passed."""

    name: str
    versions: Sequence[str]
    results: dict[str, str]

    @property
    def failed(self) -> list[str]:
        return [check for check, error in self.results.items() if error]

    def line(self) -> str:
        language = {"python": "Python", "node": "JavaScript"}
        project, _, ending = self.name.rpartition("_")
        client = f"{project.replace('_', ' ')} ({language[ending]})" if ending in language else self.name
        cells = (client, ", ".join(self.versions), f"{datetime.now(UTC):%Y-%m-%d}", self._checks(), self._result())
        return f"| {' | '.join(cells)} |"

    def _checks(self) -> str:
        """Return the names of the checks, with the number of those that differ in a number only."""
        names = Counter(re.sub(r" \d+$", "", check) for check in self.results)
        named = (name if number == 1 else f"{name} ({number})" for name, number in names.items())
        return ", ".join(named).replace("_", " ")

    def _result(self) -> str:
        if not self.failed:
            return f"{len(self.results)} of {len(self.results)} pass"
        errors = "; ".join(f"{check.replace('_', ' ')}: {self.results[check]}" for check in self.failed)
        passed = len(self.results) - len(self.failed)
        return f"{passed} of {len(self.results)} pass; {errors}".replace("|", "/").replace("\n", " ")


def write(row: Row) -> None:
    """Write the page with this row, and the rows of other clients that it has."""
    lines = {_client(line): line for line in PAGE.read_text().splitlines() if _is_row(line)} if PAGE.exists() else {}
    lines[_client(row.line())] = row.line()
    PAGE.write_text(START + HEAD + "".join(f"{line}\n" for line in lines.values()))


def _is_row(line: str) -> bool:
    return line.startswith("| ") and _client(line) != "Client"


def _client(line: str) -> str:
    return line.split("|")[1].strip()
