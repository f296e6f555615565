"""The code in the README and the docs runs as it stands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_the_python_on_a_page_runs_from_top_to_bottom(page, own_cache, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks(page)), page, "exec"), {"__name__": "page"})


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        assert ((ROOT / page).parent / target).exists(), target


def test_every_command_the_readme_shows_exists():
    import typer

    from gesso.cli.main import app

    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    shown = set(re.findall(r"^gesso (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert shown
    assert shown <= commands


def test_the_map_names_every_room():
    """Each module is in CONTRIBUTING's map, and the map names no module that is not there."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = text[text.index("gesso/\n") : text.index("docs/  ")]
    for path in (ROOT / "gesso").rglob("*.py"):
        if path.name not in ("__init__.py", "__main__.py"):
            assert re.search(rf"\b{path.stem}\b", tree), path
    for name in re.findall(r"\b(\w+)\.py\b", tree):
        assert list((ROOT / "gesso").rglob(f"{name}.py")), name
