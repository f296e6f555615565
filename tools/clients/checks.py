"""What every client script shares: the requests, what their answers must satisfy, and how results are reported.

A script is run as `python tools/clients/NAME.py URL SEEING_URL` with the URLs of a server and of one whose model sees
images, and prints one JSON line per check.
"""

import base64
import json
import struct
import sys
import traceback
import zlib
from collections.abc import Callable, Sequence
from typing import Any

MODEL, SEEING_MODEL = "gesso-mini", "seeing"
KEY = "not-needed"
QUESTION = "Who are you?"
WEATHER_QUESTION = "What is the weather in Paris?"
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


def png(red: int, green: int, blue: int) -> bytes:
    """Return a PNG file of 16 x 16 pixels of one colour. The environments of clients have no Pillow."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = (b"\0" + bytes((red, green, blue)) * 16) * 16
    header = struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


RED, BLUE = png(255, 0, 0), png(0, 0, 255)


def data_url(file: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def run(*checks: Callable[[str], None], seeing: Sequence[Callable[[str], None]] = ()) -> None:
    """Run the checks against the server of the first argument, and `seeing` against that of the second."""
    failed, urls = False, dict.fromkeys(checks, sys.argv[1])
    urls |= dict.fromkeys(seeing, sys.argv[2]) if len(sys.argv) > 2 else {}
    for check, url in urls.items():
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


def is_introduction(text: Any) -> None:
    """Assert that a text is gesso-mini's answer to QUESTION."""
    assert isinstance(text, str) and "gesso" in text.lower(), text


def differ(ask: Callable[[bytes], Any]) -> None:
    """Assert that the answer about an image is text, the same for the same image, and another for another."""
    answers = [ask(file) for file in (RED, BLUE, RED)]
    for answer in answers:
        is_text(answer)
    assert answers[0] == answers[2] != answers[1], answers
