"""Describe Python objects as Markdown: signatures, docstrings, and the fields of dataclasses."""

import ast
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def public_members(kind: type) -> list[str]:
    """Return the public methods and properties that a class of this package defines, in the order of the source."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("gesso")]
    fields = {item.name for item in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    found: dict[str, None] = {}
    for base in reversed(own):
        for name, value in vars(base).items():
            callable_or_property = callable(value) or hasattr(value, "__get__")
            if not name.startswith("_") and name not in fields and callable_or_property:
                found[name] = None
    return list(found)


def method(kind: type, name: str) -> list[str]:
    value = inspect.getattr_static(kind, name)
    title = f"{kind.__name__}.{name}"
    heading = ["", f"### {title}", ""]
    if not inspect.isfunction(value):
        target = getattr(value, "fget", None) or getattr(value, "func", None)
        return [*heading, "Property.", "", *docstring(target)]
    return [*heading, *signature(title, value, drop_self=True), "", *docstring(value)]


def signature(title: str, function: Callable[..., Any], drop_self: bool = False) -> list[str]:
    found = inspect.signature(function)
    rows: list[str] = []
    for item in list(found.parameters.values())[1 if drop_self else 0 :]:
        if item.kind is item.KEYWORD_ONLY and "*" not in rows:
            rows.append("*")
        default = "" if item.default is item.empty else f" = {item.default!r}"
        options = _typed_options(item)
        if options and "*" not in rows:
            rows.append("*")
        stars = "**" if item.kind is item.VAR_KEYWORD else "*" if item.kind is item.VAR_POSITIONAL else ""
        rows += options or [f"{stars}{item.name}: {_type_name(item.annotation)}{default}"]
    returns = _type_name(found.return_annotation)
    one_line = f"{title}({', '.join(rows)}) -> {returns}"
    if len(one_line) <= 100:
        return ["```python", one_line, "```"]
    return ["```python", f"{title}(", *(f"    {row}," for row in rows), f") -> {returns}", "```"]


def _typed_options(item: inspect.Parameter) -> list[str]:
    """Return the keyword parameters that `**options: Unpack[Options]` stands for."""
    if item.kind is not item.VAR_KEYWORD or typing.get_origin(item.annotation) is not typing.Unpack:
        return []
    (options,) = typing.get_args(item.annotation)
    return [f"{name}: {_type_name(kind)} = ..." for name, kind in typing.get_type_hints(options).items()]


def docstring(target: Any) -> list[str]:
    """Return a docstring as Markdown. Lines such as `name: meaning` become a list."""
    text = inspect.getdoc(target) or ""
    if text.startswith(f"{getattr(target, '__name__', '')}("):  # the signature that dataclasses put there
        return []
    lines: list[str] = []
    for line in text.splitlines():
        name = re.match(r"\s*([a-z_]+(?:, [a-z_]+)*)(?=: |,$)", line)
        if lines and lines[-1].startswith("- ") and lines[-1].endswith(","):  # a list of names goes on
            lines[-1] += f" {line.strip()}"
        elif name and (line.startswith(" ") or ": " in line):
            lines += [] if lines and lines[-1].startswith("- ") else [""]
            lines.append(f"- {line.strip()}")
        elif lines and lines[-1].startswith("- ") and line.strip():
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return [re.sub(r"^- ([a-z_, ]+): ", lambda match: f"- {_code_list(match[1])}: ", line) for line in lines]


def _code_list(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


def fields_table(kind: type) -> list[str]:
    comments = _field_comments(kind)
    rows = []
    for item in dataclasses.fields(kind):
        rows.append((f"`{item.name}`", f"`{_type_name(item.type)}`", _default(item), comments.get(item.name, "")))
    return table(("Field", "Type", "Default", "Meaning"), rows)


def _type_name(annotation: Any) -> str:
    """Return an annotation as a reader writes it: without modules, and `Event` for the union of all events."""
    if annotation is type(None):
        return "None"
    if typing.get_origin(annotation) is typing.Union:
        return " | ".join(_type_name(each) for each in typing.get_args(annotation))
    text = annotation.strip("'\"") if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:pathlib|typing|collections\.abc|gesso(?:\.\w+)*)\.(?=[A-Z])", "", text)
    return text.replace("Draft | Commit | Done | Scored | Failed", "Event")


def _default(item: "dataclasses.Field[Any]") -> str:
    if item.default is not dataclasses.MISSING:
        return f"`{item.default!r}`"
    return "" if item.default_factory is dataclasses.MISSING else f"`{item.default_factory()!r}`"


def _field_comments(kind: type) -> dict[str, str]:
    """Return the comment beside or above each field of a dataclass, inherited fields included."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        source = textwrap.dedent(inspect.getsource(base))
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                beside = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")[2]
                above: list[str] = []
                for line in reversed(lines[: node.lineno - 1]):
                    if not line.strip().startswith("# "):
                        break
                    above.insert(0, line.strip()[2:])
                found[node.target.id] = " ".join([*above, beside]).strip()
    return found


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table without the columns that are empty in every row."""
    rows = list(rows)
    kept = [column for column in range(len(header)) if any(row[column] for row in rows)]
    lines = ["| " + " | ".join(header[column] for column in kept) + " |", "|" + "---|" * len(kept)]
    return lines + ["| " + " | ".join(_cell(row[column]) for column in kept) + " |" for row in rows]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;" if "`" not in text else "<")
