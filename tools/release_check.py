"""Check that a release can be made: `python -m tools.release_check [TAG]`.

It fails until authors and repository are set, and if version, changelog, citation and tag disagree. Without TAG, the
tags of the present commit are checked.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Print what is missing and return 1, or return 0 if nothing is."""
    tags = sys.argv[1:] or tags_of_commit()
    missing = list(problems(ROOT, tags))
    for problem in missing:
        print(problem, file=sys.stderr)
    if not missing:
        print(f"ready to release {version_of(ROOT)}")
    return int(bool(missing))


def tags_of_commit() -> list[str]:
    """Return the version tags of the present commit; none outside of a Git repository."""
    command = ["git", "tag", "--points-at", "HEAD", "--list", "v*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()


def version_of(root: Path) -> str:
    """Return the version of the package, which is the version of the distribution."""
    match = re.search(r'^__version__ = "(.+)"$', (root / "gesso" / "__init__.py").read_text(encoding="utf-8"), re.M)
    assert match, "gesso/__init__.py has no __version__"
    return match[1]


def problems(root: Path, tags: Sequence[str]) -> Iterator[str]:
    """Yield a line for each reason not to release."""
    version = version_of(root)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if not project.get("authors"):
        yield "pyproject.toml: [project] has no authors"
    if "Repository" not in project.get("urls", {}):
        yield "pyproject.toml: [project.urls] has no Repository"
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    for field in ("authors", "repository-code"):
        if not citation.get(field):
            yield f"CITATION.cff: {field} is missing"
    if str(citation["version"]) != version:
        yield f"CITATION.cff: the version is {citation['version']}; gesso/__init__.py has {version}"
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.M):
        yield f"CHANGELOG.md: no heading '## [{version}] - YYYY-MM-DD'"
    for tag in tags:
        if tag != f"v{version}":
            yield f"the tag is {tag}; gesso/__init__.py has {version}, so it must be v{version}"


if __name__ == "__main__":
    sys.exit(main())
