"""Commands, options, make targets and test markers that the pages name exist."""

import importlib.util
import re
import tomllib
from functools import cache

import pytest
import typer

from tests.docs.pages import ROOT, code_blocks, code_spans, pages, text_of


@cache
def options() -> dict[str, set[str]]:
    """Return the long options of each command."""
    from gesso.cli.main import app

    root = typer.main.get_command(app)
    return {
        name: {option for item in command.params for option in [*item.opts, *item.secondary_opts]} | {"--help"}
        for name, command in root.commands.items()  # type: ignore[attr-defined]
    }


def commands(page: str) -> list[str]:
    """Return the command lines on a page, in code blocks and in the text, without comments."""
    lines = [
        line for language in ("sh", "", "ini") for block in code_blocks(page, language) for line in block.split("\n")
    ]
    return [line.split("  #")[0].strip() for line in [*lines, *code_spans(page)]]


def test_options_of_gesso_commands_exist():
    found = 0
    for page in pages():
        for line in commands(page):
            for command, rest in re.findall(r"(?:^|[ /])gesso ([a-z]+)\b([^|]*)", line):
                assert command in options(), f"{page}: {line}"
                for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", rest):
                    assert option in options()[command], f"{page}: {line}: {option}"
                    found += 1
    assert found > 100


@pytest.mark.parametrize("page", pages())
def test_options_named_alone_exist(page):
    known = set().union(*options().values()) | {"--version", "--install-completion", "--show-completion"}
    for span in code_spans(page):
        if span.startswith("--"):
            option = re.split(r"[ =]", span)[0]
            assert option in known or _is_option_of_a_script(option), f"{option} in {span}"


def _is_option_of_a_script(option: str) -> bool:
    return f'"{option}"' in _scripts()


@cache
def _scripts() -> str:
    folders = (ROOT / "benchmarks", ROOT / "examples", ROOT / "tests", ROOT / "tools", ROOT / "recipes")
    return "\n".join(path.read_text(encoding="utf-8") for each in folders for path in each.rglob("*.py"))


@pytest.mark.parametrize("page", pages())
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE))
    for line in commands(page):
        if match := re.match(r"make ([a-z -]+)", line):
            for target in match[1].split():
                assert target in targets, f"{line}: {target}"


@pytest.mark.parametrize("page", pages())
def test_modules_that_pages_run_exist(page):
    for line in commands(page):
        for module in re.findall(r"python3? -m ([\w.]+)", line):
            assert importlib.util.find_spec(module), line


@pytest.mark.parametrize("page", pages())
def test_pytest_markers_on_a_page_exist(page):
    settings = tomllib.loads(text_of("pyproject.toml"))["tool"]["pytest"]["ini_options"]
    markers = {marker.partition(":")[0] for marker in settings["markers"]}
    for line in commands(page):
        for marker in re.findall(r"pytest -m (\w+)", line):
            assert marker in markers, line


def test_test_names_that_pages_select_exist():
    for page in pages():
        for line in commands(page):
            if match := re.search(r"pytest (?:-m \w+ )?(tests/[\w/.]+) -k (\"[^\"]+\"|\w+)", line):
                names = re.sub(r"\b(or|and|not)\b|\"", " ", match[2]).split()
                source = text_of(match[1])
                assert all(re.search(rf"def test_\w*{name}", source) for name in names), line
