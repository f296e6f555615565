"""The site builds without warnings and loads nothing from other hosts."""

import re
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

pytest.importorskip("sphinx")
pytest.importorskip("myst_parser")
pytest.importorskip("furo")


def build(source, out) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", str(source), str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_site_builds_without_warnings_and_loads_nothing_from_other_hosts(tmp_path):
    done = build(ROOT / "docs", tmp_path)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loaded = re.findall(
            r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"([^\"]+)\"", page.read_text(encoding="utf-8")
        )
        assert not [target for target in loaded if re.match(r"(https?:)?//", target)], page
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", sheet.read_text(encoding="utf-8")), sheet
