"""The environment in which commands run."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tiny_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model as the default one, and a terminal without settings of the person who runs the tests."""
    monkeypatch.setenv("GESSO_MODEL", str(tiny_directory))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "PYTHONIOENCODING", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
