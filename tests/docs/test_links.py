"""Links lead to files and headings that exist; every page is in the table of contents."""

import re
import sys

import pytest

from tests.docs.pages import GENERATED, ROOT, code_blocks, pages, prose, text_of

sys.path.insert(0, str(ROOT / "docs"))


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", pages())
def test_links_lead_to_files_and_headings_that_exist(page):
    from generate_reference import PAGES

    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if file.parent == GENERATED:
            assert file.stem in PAGES, target
            continue
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(str(file.relative_to(ROOT))), target


def test_every_page_is_in_the_table_of_contents():
    from generate_reference import PAGES

    trees = "\n".join(code_blocks("docs/index.md", "{toctree}"))
    listed = {line for line in trees.splitlines() if line and not line.startswith(":")}
    written = {page.removeprefix("docs/").removesuffix(".md") for page in pages() if page.startswith("docs/")}
    assert listed == (written - {"index"}) | {f"reference/{name}" for name in PAGES}


@pytest.mark.parametrize("page", pages())
def test_files_named_on_a_page_exist(page):
    for name in re.findall(r"`((?:gesso|examples|tests|docs)/[\w./-]+)", text_of(page)):
        name = name.rstrip(".")
        assert (ROOT / name).exists() or name == "docs/reference", name


def test_the_layout_in_contributing_names_every_package_and_module():
    text = text_of("CONTRIBUTING.md")
    tree = text[text.index("gesso/\n") : text.index("examples/ ")]
    named = set(re.findall(r"[\w]+(?:/|\.py)", tree))
    actual = {path.name for path in (ROOT / "gesso").glob("*.py") if not path.name.startswith("__")}
    actual |= {f"{path.name}/" for path in (ROOT / "gesso").iterdir() if (path / "__init__.py").exists()}
    assert actual - named == set()
    for name in re.findall(r"^  (\w+/)", tree, re.MULTILINE):
        assert name in actual, name


def test_pages_named_in_the_code_exist():
    for folder in ("gesso", "examples", "tests", "recipes"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".js", ".md", ".toml") and "node_modules" not in path.parts:
                for name in re.findall(r"\bdocs/[\w/-]+\.(?:md|json|svg|csv)", path.read_text(encoding="utf-8")):
                    assert (ROOT / name).exists(), f"{path}: {name}"
