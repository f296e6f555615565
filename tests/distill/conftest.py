"""A tiny model with short canvases, and recorded runs of it."""

from dataclasses import dataclass

import pytest

import gesso
from gesso.distill.prompts import VerifiedRequest
from gesso.distill.record import record
from tests.tiny import make


@dataclass
class Words:
    """Prompts of which every second answer is accepted."""

    count: int = 6
    note = {"words": "abcdefghijkl"}

    def __len__(self):
        return self.count

    def ask(self, g, index, options):
        request = g.request(f"word {chr(97 + index)}", seed=index, **options)
        return VerifiedRequest(request, lambda result: index % 2 == 0)

    def rows(self):
        return ({"prompt": f"{i}: ", "completion": "yes"} for i in range(self.count))


@pytest.fixture(scope="session")
def short(tmp_path_factory):
    """A checkpoint with canvases of 16."""
    directory = make(tmp_path_factory.mktemp("short") / "model")
    config = directory / "config.json"
    config.write_text(config.read_text().replace('"canvas_length": 256', '"canvas_length": 16'))
    return directory


@pytest.fixture(scope="session")
def g(short):
    return gesso.load(short)


OPTIONS = {"steps": 5, "max_new_tokens": 40}  # two canvases of 16 and a shorter one


@pytest.fixture(scope="session")
def recording(g, tmp_path_factory):
    directory = tmp_path_factory.mktemp("recording")
    assert record(g, Words(), directory, {"model": "short"}, OPTIONS, batch=3)
    return directory
