"""Run every command of Ollama's API page as it is written there.

The commands ask port 11434 for several models, so a server with each of these names listens there in turn. A command
passes if the answer has the fields of the answer on the page. What this server does not do must answer with one line.
"""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gesso.bench.server import running_server

PORT = "11434"
WITH_IMAGES = "llava"
LIMIT = 120  # seconds per command
CODE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
ENDPOINT = re.compile(r"localhost:11434/api/(\w+)")
MODEL = re.compile(r'"model": "([^"]+)"')
ANSWERED = ("generate", "chat", "tags", "show", "pull", "ps", "version")
# JSON has no comments, and Ollama rejects this body too.
INVALID = "// the message from the model appended to history"
# `context` is deprecated, and a message without images has none. Of a model, these describe one of Ollama's files.
OPTIONAL = {"context", "message.images", "modelfile", "license", "tensors", "projector_info"}


@dataclass(frozen=True)
class Command:
    """A command of the page."""

    number: int
    text: str
    fields: set[str]  # of the answer that the page shows

    @property
    def endpoint(self) -> str:
        name = ENDPOINT.search(self.text)
        return name[1] if name else ""

    @property
    def model(self) -> str | None:
        """The model that has to be served, or None if it does not matter."""
        name = MODEL.search(self.text)
        return name[1] if name and self.endpoint in ANSWERED else None

    @property
    def title(self) -> str:
        return f"{self.endpoint} {self.number}"


def run(page: Path) -> dict[str, str]:
    """Return the error of each command."""
    commands = list(read(page.read_text()))
    models = list(dict.fromkeys(command.model for command in commands if command.model))
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="gesso-") as directory:
        # The status of the answer on a line of its own, without an option in the command.
        (Path(directory) / ".curlrc").write_text('silent\nwrite-out = "\\n%{http_code}"\n')
        for model in models:
            with running_server(*_arguments(model, directory)) as server:
                server.wait_ready()
                chosen = [command for command in commands if (command.model or models[0]) == model]
                results |= {command.title: check(command, directory) for command in chosen}
    return {command.title: results[command.title] for command in commands}


def _arguments(model: str, directory: str) -> list[str]:
    from tests.tiny import make

    arguments = ["--device", "cpu", "--name", model, "--port", PORT]
    if model != WITH_IMAGES:
        return arguments
    return [*arguments, "-m", str(make(Path(directory) / "model", sees=True))]


def read(page: str) -> Iterator[Command]:
    """Yield the commands of the page. The answer is in the next block that is no command."""
    blocks = [(match[1], match[2]) for match in CODE.finditer(page)]
    number = 0
    for index, (_, text) in enumerate(blocks):
        if not text.startswith("curl "):
            continue
        number += 1
        language, shown = blocks[index + 1]
        shown = shown if language.startswith("json") else ""
        yield Command(number=number, text=text, fields=_fields(shown))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a text: one, or those of a stream."""
    decoder, position = json.JSONDecoder(strict=False), text.find("{")
    while position >= 0:
        try:
            value, end = decoder.raw_decode(text, position)
            yield value
        except ValueError:
            end = position + 1
        position = text.find("{", end)


def _fields(text: str) -> set[str]:
    """Return the names of an answer's fields, with those of its message and of its first model."""
    names: set[str] = set()
    for part in _objects(text):
        models = part.get("models") or [{}]
        names |= {*part, *models[0], *(f"message.{name}" for name in part.get("message") or {})}
    return names


def check(command: Command, home: str) -> str:
    """Run a command, and return how its answer differs from the page, or nothing."""
    shell = ["sh", "-c", command.text]
    environment = {**os.environ, "HOME": home, "CURL_HOME": home}
    done = subprocess.run(shell, cwd=home, env=environment, capture_output=True, text=True, timeout=LIMIT)
    body, _, status = done.stdout.rpartition("\n")
    if command.endpoint not in ANSWERED or INVALID in command.text:
        return _check_refusal(command, body, status)
    if status != "200":
        return f"{status} {body[-300:]}"
    lacking = command.fields - _fields(body) - OPTIONAL
    return f"the answer lacks {', '.join(sorted(lacking))}" if lacking else ""


def _check_refusal(command: Command, body: str, status: str) -> str:
    """Check that an endpoint that this server does not have says so in one line."""
    if " -I " in command.text:  # only headers
        return "" if "501" in status else status
    if command.text.startswith("curl -T") and not status.strip("0"):
        return ""  # the file of this command does not exist, so curl sends nothing
    error = next(_objects(body), {}).get("error")
    explained = isinstance(error, str) and "\n" not in error
    return "" if status[:1] in "45" and explained else f"{status} {body[-300:]}"
