"""What every client script shares: the requests, what their answers must satisfy, and how results are reported.

A script is run as `python tests/clients/NAME.py URL` with the URL of a server, and prints one JSON line per check.
"""

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

MODEL = "gesso-mini"
KEY = "not-needed"
QUESTION = "Who are you?"
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}


def run(*checks: Callable[[str], None]) -> None:
    """Run the checks against the server whose URL is the first argument."""
    url, failed = sys.argv[1], False
    for check in checks:
        error = ""
        try:
            check(url)
        except Exception as reason:
            failed, error = True, f"{type(reason).__name__}: {reason}"[:500]
            traceback.print_exc()
        print(json.dumps({"check": check.__name__, "error": error}), flush=True)
    sys.exit(failed)


def is_person(value: Any) -> None:
    person = json.loads(value) if isinstance(value, str) else value
    assert set(person) == {"name", "age"} and isinstance(person["age"], int), value


def is_weather(arguments: Any) -> None:
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert list(found) == ["city"] and isinstance(found["city"], str), arguments


def is_text(text: Any) -> None:
    assert isinstance(text, str) and text.strip(), text
