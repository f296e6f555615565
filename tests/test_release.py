"""What a release needs: names, versions and dates that agree, and authors and a repository that are set."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import gesso
from tools.release_check import ROOT, problems, version_of

# `pip install` of gesso, or an extra of it.
OTHER_PROJECT = re.compile(r"(?<![\w-])gesso\[[a-z]|pip install (?:-\S+ )*['\"]?gesso(?![\w-])")
COMPLETE = {
    "gesso/__init__.py": '__version__ = "1.2.3"\n',
    "pyproject.toml": '[project]\nauthors = [{name = "A"}]\n[project.urls]\nRepository = "https://example.org/a"\n',
    "CITATION.cff": "version: 1.2.3\nauthors: [{name: A}]\nrepository-code: https://example.org/a\n",
    "CHANGELOG.md": "## [Unreleased]\n\n## [1.2.3] - 2026-01-31\n",
}


@pytest.fixture
def complete(tmp_path):
    """A project that can be released."""
    for name, text in COMPLETE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_complete_project_can_be_released(complete):
    assert list(problems(complete, ["v1.2.3"])) == list(problems(complete, [])) == []


@pytest.mark.parametrize(
    ("file", "before", "after", "problem"),
    [
        ("pyproject.toml", 'authors = [{name = "A"}]', "", "has no authors"),
        ("pyproject.toml", "Repository", "Homepage", "has no Repository"),
        ("CITATION.cff", "authors: [{name: A}]\n", "", "authors is missing"),
        ("CITATION.cff", "repository-code", "url", "repository-code is missing"),
        ("CITATION.cff", "1.2.3", "1.2.2", "the version is 1.2.2; gesso/__init__.py has 1.2.3"),
        ("CHANGELOG.md", "2026-01-31", "unreleased", "no heading '## [1.2.3] - YYYY-MM-DD'"),
        ("CHANGELOG.md", "1.2.3", "1.2.30", "no heading '## [1.2.3] - YYYY-MM-DD'"),
    ],
)
def test_what_is_missing_is_named(complete, file, before, after, problem):
    text = (complete / file).read_text()
    assert before in text
    (complete / file).write_text(text.replace(before, after))
    (found,) = problems(complete, ["v1.2.3"])
    assert file in found and problem in found


def test_a_tag_of_another_version_is_refused(complete):
    (found,) = problems(complete, ["v1.2.3", "v1.3.0"])
    assert found.startswith("the tag is v1.3.0") and "must be v1.2.3" in found


def test_versions_of_the_repository_agree():
    assert version_of(ROOT) == gesso.__version__
    assert not [problem for problem in problems(ROOT, []) if "version" in problem]


def test_the_changelog_keeps_a_changelog():
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    versions = [line for line in lines if line.startswith("## ")]
    assert versions[0] == "## [Unreleased]"
    assert versions[1].startswith(f"## [{gesso.__version__}] - ")
    kinds = {line.removeprefix("### ") for line in lines if line.startswith("### ")}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


# --- the name of the distribution -----------------------------------------------------------------------------------


def test_extras_are_those_of_gesso_lm():
    """`gesso` on PyPI belongs to another project: `pip install` of it or of its extras gets strangers' code."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout.split("\0")
    paths = [ROOT / name for name in files if name] or [path for path in ROOT.rglob("*") if ".venv" not in path.parts]
    texts = {".py", ".md", ".toml", ".txt", ".js", ".html", ".yml", ".yaml", ".cff", ""}
    shown = [path for path in paths if path.suffix in texts and path.is_file() and path != Path(__file__)]
    assert len(shown) > 500
    for path in shown:
        match = OTHER_PROJECT.search(path.read_text(encoding="utf-8", errors="replace"))
        assert not match, f"{path.relative_to(ROOT)}: {match[0]}"


@pytest.mark.parametrize("wrong", ["needs gesso[cpu]", "pip install gesso", "pip install -U 'gesso[serve]'"])
def test_the_name_of_the_other_project_is_recognized(wrong):
    assert OTHER_PROJECT.search(wrong)
    assert not OTHER_PROJECT.search(wrong.replace("gesso", "gesso-lm"))


def test_extras_that_the_package_names_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "gesso-lm"
    extras = project["optional-dependencies"]
    assert {"serve", "gpu", "cpu", "train", "ray", "docs", "dev"} <= set(extras)
    for path in (ROOT / "gesso").rglob("*.py"):
        for extra in re.findall(r"gesso-lm\[(\w+)\]", path.read_text(encoding="utf-8")):
            assert extra in extras, f"{path}: {extra}"
