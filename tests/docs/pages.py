"""The pages of the documentation, and the parts of them that tests check."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs" / "reference"


def pages() -> list[str]:
    """Return every page written by hand, relative to the repository."""
    found = [path for path in (ROOT / "docs").rglob("*.md") if GENERATED not in path.parents]
    return ["README.md", "CONTRIBUTING.md", "SECURITY.md", *sorted(str(path.relative_to(ROOT)) for path in found)]


def link_files(directory: Path) -> None:
    """Link the files that pages name into a directory, in which commands and programs may write."""
    (directory / "examples").symlink_to(ROOT / "examples")
    (directory / "gesso").mkdir()
    (directory / "gesso" / "demo").symlink_to(ROOT / "gesso" / "demo")


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def code_blocks(page: str, language: str) -> list[str]:
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)
    return [code for found, code in blocks if found == language]


def prose(page: str) -> str:
    """Return the text of a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)


def code_spans(page: str) -> list[str]:
    return re.findall(r"`([^`]+)`", prose(page))
