"""What ties the tests to the layout of the package is counted, and may only become less."""

from pathlib import Path

from tools import doors

NAMES = 862
PATCHES = 119
PATCHES_OF_MODULES = 53
WITHOUT_A_REASON = 12

TEST = """
import sys
from gesso import InputError
from gesso.engine import runner
from gesso.engine.engine import Engine


def test_it(monkeypatch):
    monkeypatch.setattr(runner, "LIMIT", 1)  # a reason
    # A reason.
    monkeypatch.setattr("gesso.engine.runner.LIMIT", 1)
    for module, name in {runner: "LIMIT"}.items():
        monkeypatch.setattr(module, name, 1)
    monkeypatch.setattr(Engine, "step", None)
    monkeypatch.setattr(sys, "platform", "win32")
"""


def test_names_and_patches_of_a_file_are_counted(tmp_path: Path) -> None:
    (tmp_path / "gesso" / "engine").mkdir(parents=True)
    (tmp_path / "gesso" / "engine" / "runner.py").touch()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(TEST)
    assert doors.internal_names(tmp_path) == {"gesso.engine.runner", "gesso.engine.engine.Engine"}
    patches = [(patch.line, patch.of_module, patch.has_reason) for patch in doors.patches(tmp_path)]
    assert sorted(patches) == [
        (9, True, True), (11, True, True), (13, True, False), (14, False, False), (15, False, False),
    ]  # fmt: skip


def test_tests_reach_into_the_package_no_more_than_they_do_now() -> None:
    """If this fails, use a public door, or give the code what the test watches or changes. If it became less, lower
    the limits."""
    patches = list(doors.patches(doors.ROOT))
    assert len(patches) <= PATCHES
    assert sum(patch.of_module for patch in patches) <= PATCHES_OF_MODULES
    assert sum(not patch.has_reason for patch in patches) <= WITHOUT_A_REASON
    assert len(doors.internal_names(doors.ROOT)) <= NAMES
