"""The Python code on every page runs as it is."""

import pytest

from tests.docs.pages import code_blocks, pages


@pytest.mark.parametrize("page", [page for page in pages() if code_blocks(page, "python")])
def test_python_on_a_page_runs_from_top_to_bottom(page, own_cache, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(code_blocks(page, "python")), page, "exec"), {"__name__": "page"})
