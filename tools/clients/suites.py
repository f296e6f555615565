"""What other projects publish about their APIs, run as it is published. None of it is part of this repository."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.clients import ollama_page, open_responses


@dataclass(frozen=True)
class Suite:
    """A suite in the directory SUITE, and a function that returns the error of each of its cases."""

    file: str
    run: Callable[[Path], dict[str, str]]


SUITES = {
    "Ollama's API page": Suite(file="ollama-api.md", run=ollama_page.run),
    "Open Responses": Suite(file="openresponses", run=open_responses.run),
}
