"""Write the reference pages from the code: command line, Python, HTTP, settings and training recipes.

The pages are Markdown files in docs/reference, which git ignores. `make docs` writes them; so does
`python docs/generate_reference.py`. Both also renew the tables of the guides, which git keeps. Such a table is between
the comments `<!-- table: name -->` and `<!-- end of table -->`.
"""

import dataclasses
import json
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from describe_python import docstring, fields_table, method, public_members, signature, table

import gesso


def write(directory: Path) -> None:
    """Write every page into a directory. Unchanged pages keep their time stamp, so Sphinx does not read them again."""
    directory.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        path, text = directory / f"{name}.md", make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def renew_tables(page: Path) -> None:
    """Write the generated tables of a guide."""
    before = page.read_text(encoding="utf-8")
    text = with_tables(before)
    if text != before:
        page.write_text(text, encoding="utf-8")


def with_tables(text: str) -> str:
    """Return the text of a guide with the present content of its generated tables."""

    def renewed(found: re.Match[str]) -> str:
        rows = "\n".join(TABLES[found[1]]())
        return f"<!-- table: {found[1]} -->\n\n{rows}\n\n<!-- end of table -->"

    return re.sub(r"<!-- table: (\w+) -->.*?<!-- end of table -->", renewed, text, flags=re.DOTALL)


# --- command line -------------------------------------------------------------------------------------------------


def command_line() -> str:
    """Return a section per command: its help, its arguments and its options."""
    from gesso.cli.main import app

    root = typer.main.get_command(app)
    lines = ["# Command line", "", "Generated from `gesso --help`.", "", str(root.epilog or "")]
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        lines += ["", f"## gesso {name}", "", str(command.help)]
        visible = [item for item in command.params if not getattr(item, "hidden", False)]
        for kind, title in (("argument", "Argument"), ("option", "Option")):
            rows = [_parameter(item) for item in visible if item.param_type_name == kind]
            if rows:
                lines += ["", *table((title, "Meaning"), rows)]
        if command.epilog and command.epilog != root.epilog:
            lines += ["", command.epilog]
    return "\n".join(lines) + "\n"


def _parameter(item: Any) -> tuple[str, str]:
    """Return the names and the meaning of an argument or option, with its type, bounds, choices and default."""
    names = ", ".join(f"`{name}`" for name in [*item.opts, *item.secondary_opts])
    text = item.help or ""
    if item.param_type_name == "option" and item.is_flag:
        value, default = "", f"`{item.opts[0]}`" if item.default else ""
    else:
        if re.fullmatch(r"[a-z0-9-]+(\|[a-z0-9-]+)+", item.metavar or ""):
            choices = ", ".join(f"`{choice}`" for choice in item.metavar.split("|"))
            value, text = "", f"{text} One of {choices}."
        else:
            value = item.metavar.replace("|", " or ") if item.metavar else _option_type(item)
        default = "" if item.default in (None, ()) else f"`{getattr(item.default, 'value', item.default)}`"
    if isinstance(item.show_default, str):
        default = item.show_default
    if item.required:
        text += " Required."
    if default:
        text += f" Default: {default}."
    if item.envvar:
        text += f" Environment variable: `{item.envvar}`."
    return f"{names} {value}".strip(), text


def _option_type(item: Any) -> str:
    """Return the type of a value with its bounds, such as `int, at least 1`."""
    annotation = item.type_descriptor.annotation
    name = next(iter(typing.get_args(annotation)), annotation).__name__.lower()
    name = {"str": "text", "int": "integer", "float": "number"}.get(name, name)
    if item.min is not None and item.max is not None:
        return f"{name}, {item.min} to {item.max}"
    return f"{name} ≥ {item.min}" if item.min is not None else name


# --- Python -------------------------------------------------------------------------------------------------------

CLASSES = ("Gesso", "Diffusion", "Result", "Usage", "ChatResult", "InfillResult", "HolesResult", "EditResult",
           "Image", "Prompt")  # fmt: skip
EVENTS = ("Draft", "Commit", "Done")
ERRORS = ("GessoError", "InputError", "CheckpointError")
MODEL_METHODS = ("new_cache", "encode", "denoise")


def python() -> str:
    """Return the public functions, classes and methods with their signatures and docstrings."""
    from gesso.model.transformer import DiffusionGemma

    lines = ["# Python API", "", "Generated from signatures and docstrings.", ""]
    lines += ["## gesso.load", "", *signature("gesso.load", gesso.load), "", *docstring(gesso.load)]
    for name in CLASSES:
        lines += _class(name)
    lines += ["", "## Events", "", "`Gesso.stream` and `Gesso.stream_chat` yield these."]
    for name in EVENTS:
        lines += _class(name, level="###")
    lines += ["", "## Model", "", "`Gesso.model` is a `DiffusionGemma`, a plain `torch.nn.Module`."]
    for name in MODEL_METHODS:
        lines += method(DiffusionGemma, name)
    if options := sorted(public_names() - {*CLASSES, *EVENTS, *ERRORS, "PRESETS", "load"}):
        lines += ["", "## Option types", "", "Typed dictionaries, for annotations of your own."]
        for name in options:
            kind = getattr(gesso, name)
            keys = ", ".join(f"`{key}`" for key in typing.get_type_hints(kind))
            lines += ["", f"### {name}", "", *docstring(kind), "", f"Keys: {keys}."]
    lines += ["", "## Errors"]
    for name in ERRORS:
        error = getattr(gesso, name)
        lines += ["", f"### {name}", "", f"Subclass of `{error.__base__.__name__}`.", "", *docstring(error)]
    return "\n".join(lines) + "\n"


def public_names() -> set[str]:
    return {*gesso.__all__, *gesso._LAZY}


def _class(name: str, level: str = "##") -> list[str]:
    kind = getattr(gesso, name)
    lines = ["", f"{level} {name}", "", *docstring(kind)]
    if dataclasses.is_dataclass(kind):
        lines += ["", *fields_table(kind)]
    for member in public_members(kind):
        lines += method(kind, member)
    return lines


# --- HTTP ---------------------------------------------------------------------------------------------------------


def http() -> str:
    """Return the endpoints and the fields of their bodies, from the server's OpenAPI description."""
    description = openapi()
    schemas = description["components"]["schemas"]
    lines = [
        "# HTTP API",
        "",
        "Generated from the server's OpenAPI description. A running server has the same at `/openapi.json`, and as a",
        "page at `/docs`.",
    ]
    bodies: list[str] = []
    for path, methods in description["paths"].items():
        for verb, operation in methods.items():
            lines += ["", f"## {verb.upper()} {path}", "", operation.get("description", "")]
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            if "$ref" in body:
                lines += ["", *_schema_fields(schemas, body["$ref"].rpartition("/")[2], bodies)]
    lines += ["", "## Nested objects"]
    for name in bodies:  # grows while nested objects name others
        lines += ["", f"### {name}", "", schemas[name].get("description", ""), ""]
        lines += _schema_fields(schemas, name, bodies)
    return "\n".join(lines) + "\n"


def openapi() -> dict[str, Any]:
    """Return the OpenAPI description of a server."""
    from gesso.serve.http.app import create_app
    from gesso.serve.settings import ServerSettings

    return create_app(ServerSettings()).openapi()


def _schema_fields(schemas: dict[str, Any], name: str, nested: list[str]) -> list[str]:
    schema = schemas[name]
    rows = []
    for field, value in schema.get("properties", {}).items():
        shown = "required" if field in schema.get("required", ()) else ""
        if not shown and value.get("default") is not None and "$ref" not in value:
            shown = f"`{json.dumps(value['default'])}`"
        rows.append((f"`{field}`", _schema_type(value, nested), shown, value.get("description", "")))
    lines = table(("Field", "Type", "Default", "Meaning"), rows)
    for example in schema.get("examples", ()):
        lines += ["", "```json", *json.dumps(example, indent=2).splitlines(), "```"]
    return lines


def _schema_type(value: dict[str, Any], nested: list[str]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        if name not in nested:
            nested.append(name)
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in value:
            kinds = [_schema_type(each, nested) for each in value[key] if each.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if "enum" in value or "const" in value:
        return " or ".join(f"`{json.dumps(each)}`" for each in value.get("enum", [value.get("const")]))
    kind = value.get("type", "any")
    if kind == "array":
        return f"list of {_schema_type(value.get('items', {}), nested)}"
    low, high = value.get("minimum"), value.get("maximum", value.get("exclusiveMaximum"))
    bounds = f", {_number(low)} to {_number(high)}" if low is not None and high is not None else ""
    bounds = bounds or (f", at least {_number(low)}" if low is not None else "")
    return f"{kind}{bounds}"


def _number(value: float) -> str:
    return "2⁶⁴ − 1" if value == 2**64 else f"{value:g}" if isinstance(value, float) else f"{value}"


# --- settings and recipes -----------------------------------------------------------------------------------------


def settings() -> str:
    """Return the diffusion settings and the presets."""
    from gesso.settings import reference

    return "\n".join(
        [
            "# Settings",
            "",
            "Generated from `gesso.settings`. Every setting has the same name in Python, on the command line",
            "(`--steps` for `steps`, and `--set top_k=20` for those without an option of their own), in the object",
            "`diffusion` of an HTTP request, and in the studio. `gesso settings` lists them.",
            "[Text diffusion](../concepts/text-diffusion.md) explains them. A preset replaces the defaults of the",
            "checkpoint; settings that you give replace those of the preset.",
            "",
            reference(),
        ]
    )


def recipes() -> str:
    """Return the sections of a training recipe with their fields."""
    from gesso.train.recipe import Recipe

    lines = [
        "# Training recipes",
        "",
        "Generated from the settings classes. A recipe is a TOML file with one section per heading. A field without",
        "a default is required. Unknown sections and fields are errors.",
    ]
    for name, kind in recipe_sections(Recipe).items():
        lines += ["", f"## [{name}]", "", *docstring(kind), "", *fields_table(kind)]
    return "\n".join(lines) + "\n"


def recipe_sections(recipe: type) -> dict[str, type]:
    """Return the dataclass of each section of a recipe."""
    from gesso.adapters import LoraSettings
    from gesso.train.data import DataSettings
    from gesso.train.objective import ObjectiveSettings

    local = {kind.__name__: kind for kind in (LoraSettings, DataSettings, ObjectiveSettings)}
    hints = typing.get_type_hints(recipe, localns=local)
    return {name: next((kind for kind in typing.get_args(hint) if kind), hint) for name, hint in hints.items()}


# --- tables of guides ---------------------------------------------------------------------------------------------


def formats() -> list[str]:
    """Return the formats of strings, with what the constraint leaves to the check or does not write."""
    from gesso.constraints.schema.formats import FORMATS

    rows = [(f"`{name}`", each.grammar, each.left, each.narrowed) for name, each in FORMATS.items()]
    return table(("Format", "Grammar", "Left to the check of the answer", "Narrower than its grammar"), rows)


def not_enforced() -> list[str]:
    """Return the keywords of the specification that are not enforced."""
    from gesso.constraints.schema.keywords import NOT_ENFORCED

    return table(("Not enforced", "So"), [(f"`{name}`", what) for name, what in NOT_ENFORCED.items()])


TABLES: dict[str, Callable[[], list[str]]] = {"formats": formats, "not_enforced": not_enforced}
PAGES: dict[str, Callable[[], str]] = {
    "command-line": command_line,
    "python": python,
    "http": http,
    "settings": settings,
    "recipes": recipes,
}

if __name__ == "__main__":
    write(Path(__file__).parent / "reference")
    renew_tables(Path(__file__).parent / "guides" / "structured-output.md")
