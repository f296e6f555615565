"""The generated reference covers every command, option, endpoint, setting, recipe field and public method."""

import dataclasses
import sys

import pytest
import typer

import gesso
from tests.docs.pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))

reference = pytest.importorskip("generate_reference")


def test_command_line_covers_every_command_and_option():
    from gesso.cli.main import app

    page = reference.command_line()
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        section = page.partition(f"## gesso {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for item in command.params:
            if getattr(item, "hidden", False):
                continue
            for option in [*item.opts, *item.secondary_opts]:
                assert f"`{option}`" in section, f"{name} {option}"


def test_python_covers_every_public_name_and_method():
    page = reference.python()
    for name in reference.public_names() - {"PRESETS", "load"}:
        assert f"# {name}\n" in page, name
    for name in reference.public_members(gesso.Gesso):
        assert f"### Gesso.{name}\n" in page, name
    assert {"generate", "chat", "infill", "edit", "stream"} <= set(reference.public_members(gesso.Gesso))


def test_settings_cover_every_setting_and_preset():
    page = reference.settings()
    for item in dataclasses.fields(gesso.Diffusion):
        assert f"`{item.name}`" in page, item.name
    for name in gesso.PRESETS:
        assert f"`{name}`" in page, name


def test_recipes_cover_every_field():
    from gesso.train.recipe import Recipe

    page = reference.recipes()
    for name, kind in reference.recipe_sections(Recipe).items():
        section = page.partition(f"## [{name}]\n")[2].partition("\n## ")[0]
        for item in dataclasses.fields(kind):
            assert f"| `{item.name}` |" in section, f"{name}.{item.name}"


def test_tables_of_the_guide_are_those_of_the_code():
    page = (ROOT / "docs/guides/structured-output.md").read_text(encoding="utf-8")
    assert page.count("<!-- table: ") == len(reference.TABLES)
    assert reference.with_tables(page) == page, "run python docs/generate_reference.py"


def test_http_covers_every_endpoint_and_field():
    page, description = reference.http(), reference.openapi()
    for path, methods in description["paths"].items():
        for method in methods:
            assert f"## {method.upper()} {path}\n" in page
    for name in ("ChatFields", "CompletionFields", "EditFields", "ResponseFields", "DiffusionFields"):
        for field in description["components"]["schemas"][name]["properties"]:
            assert f"| `{field}` |" in page, f"{name}.{field}"


def test_generated_pages_have_no_empty_table(tmp_path):
    reference.write(tmp_path)
    for name in reference.PAGES:
        text = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
        assert text.startswith("# ")
        assert "|---|\n\n" not in text
