"""Seconds that each test file takes, recorded from a run: they order the files, and say which ones are slow.

After tests were added or changed, record a run of the whole suite on a quiet machine:

    make properties PYTEST_ADDOPTS=--junitxml=durations.xml
    python -m tests.durations durations.xml
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

TESTS = Path(__file__).parent
RECORD = TESTS / "durations.json"
SLOW = 3.0  # seconds from which a file is left out of `make check`


@cache
def recorded() -> dict[str, float]:
    """Return the seconds of each test file, by its path relative to `tests`."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


def order(files: Sequence[str], seconds: dict[str, float], starts_server: Callable[[str], bool]) -> list[str]:
    """Return the files in the order in which processes take them: the longest first, since a long one at the end would
    run alone.

    Files with a server wait most of their time, so they alternate with files that compute. Both kinds advance at the
    same rate: each file is placed by the share of its kind's time that comes before it.
    """
    places: dict[str, float] = {}
    for kind in (True, False):
        group = [file for file in files if starts_server(file) == kind]
        total = sum(seconds.get(file, 0.0) for file in group)
        before = 0.0
        for file in sorted(group, key=lambda file: -seconds.get(file, 0.0)):
            places[file] = before / total if total else 0.0
            before += seconds.get(file, 0.0)
    return sorted(files, key=places.__getitem__)


def read(report: Path) -> dict[str, float]:
    """Return the seconds of each test file in a JUnit report of pytest."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        seconds[_file(case.attrib["classname"])] += float(case.attrib["time"])
    return dict(seconds)


def _file(module: str) -> str:
    """Return the path of a test module such as `tests.serve.test_faults`, relative to `tests`."""
    return "/".join(module.split(".")[1:]) + ".py"


def updated(seconds: dict[str, float], reports: Sequence[Path]) -> dict[str, float]:
    """Return the record with the seconds of the files in these reports, and without files that no longer exist."""
    for report in reports:
        seconds = seconds | read(report)
    return {file: round(seconds[file], 1) for file in sorted(seconds) if (TESTS / file).exists()}


if __name__ == "__main__":
    record = updated(recorded(), [Path(argument) for argument in sys.argv[1:]])
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
