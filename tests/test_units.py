"""The units of test files that one process of pytest-xdist runs."""

import pytest

from tests.units import unit


@pytest.mark.parametrize(
    "files",
    [
        ("serve/test_serve.py", "serve/test_ollama.py", "serve/test_outcomes.py"),
        ("serve/test_anthropic.py", "serve/test_responses.py", "serve/test_echo.py"),
        ("serve/studio/test_page.py", "serve/studio/test_studio.py", "serve/test_images.py"),
        ("attack/test_parsing.py", "attack/test_constraints.py"),
    ],
)
def test_files_that_share_a_server_or_a_browser_are_one_unit(files):
    (shared,) = {unit(file) for file in files}
    assert shared not in files


def test_other_files_are_units_of_their_own():
    for file in ("engine/test_engine.py", "serve/test_faults.py", "serve/test_relay.py"):
        assert unit(file) == file
