"""The Python code on every page runs as it is, and prints what the page says."""

import re

import pytest

from tests.docs.pages import code_blocks, link_files, pages


def promised(code: str) -> list[str]:
    """Return the texts that the comments of a page promise. A text that ends in … is the beginning of a line."""
    return re.findall(r"  # prints (.+)$", code, re.MULTILINE)


def matches(line: str, text: str) -> bool:
    return line.strip().startswith(text[:-1]) if text.endswith("…") else line.strip() == text


@pytest.mark.parametrize("page", [page for page in pages() if code_blocks(page, "python")])
def test_python_on_a_page_runs_and_prints_what_the_page_says(page, own_cache, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    link_files(tmp_path)
    code = "\n".join(code_blocks(page, "python"))
    exec(compile(code, page, "exec"), {"__name__": "page"})
    printed = capsys.readouterr().out
    lines = iter(printed.splitlines())
    for text in promised(code):
        # `any` continues after the last match, so the texts must be in the page's order.
        assert any(matches(line, text) for line in lines), f"{text!r} is missing in:\n{printed}"
