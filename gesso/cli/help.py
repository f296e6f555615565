"""Plain help texts that fit 80 columns, with options and commands grouped by panel."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import groupby
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gesso.cli.spelling import ALSO, MEANT
from gesso.errors import InputError
from gesso.removed import removed_option

OPTIONS = "Options"  # the panel of options that name none
NAMES = 24  # columns at most for the names of options; longer names have a line of their own
# Value types: typer's names, and those in help texts.
TYPES = {"str": "TEXT", "list[str]": "TEXT", "path": "PATH", "list[path]": "PATH", "int": "N", "int range": "N",
         "list[int range]": "N", "float": "NUMBER", "float range": "NUMBER"}  # fmt: skip
BOUNDS = re.compile(r"; [\d.<>=x]+(?=\])|  \[[\d.<>=x]+\]")  # "[default: 8; x>=1]": an error names them, too
DEFAULT = re.compile(r"  (?=\[default: )")


class Command(TyperCommand):
    """A command whose help groups the options by panel, and whose errors name what replaces a removed option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            message = removed_option(self.name, getattr(error, "option_name", ""))
            if message is None:
                raise
            raise InputError(message) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_arguments(self.get_params(ctx), ctx, formatter)
        _write_options(self.get_params(ctx), ctx, formatter)


class Group(TyperGroup):
    """The program: its help lists the commands by panel, then the options. Without a command it prints its help."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, ALSO.get(cmd_name, cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0].lower()
        if name in MEANT:
            raise InputError(f"there is no command {args[0]!r}; is gesso {MEANT[name]} meant?")
        if not name.startswith("-") and self.get_command(ctx, args[0]) is None:
            close = get_close_matches(name, [*self.commands, *ALSO], 1)
            advice = f"is gesso {close[0]} meant?" if close else "gesso --help lists the commands"
            raise InputError(f"there is no command {args[0]!r}; {advice}")
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        commands: Mapping[str, Any] = self.commands
        for panel, names in groupby(commands, key=lambda name: commands[name].rich_help_panel):
            rows = [(name, commands[name].get_short_help_str(limit=200)) for name in names]
            rows = [(name, text) for name, text in rows if not commands[name].hidden]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows, col_max=NAMES)
        _write_options(self.get_params(ctx), ctx, formatter)


def _write_arguments(parameters: Iterable[Any], ctx: Any, formatter: Any) -> None:
    rows = [_row(p, ctx) for p in parameters if p.param_type_name == "argument" and not p.hidden]
    if rows:
        with formatter.section("Arguments"):
            formatter.write_dl(rows, col_max=NAMES)


def _write_options(parameters: Iterable[Any], ctx: Any, formatter: Any) -> None:
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in parameters:
        if parameter.param_type_name != "option" or parameter.hidden:
            continue
        panel = getattr(parameter, "rich_help_panel", None) or OPTIONS
        panels.setdefault(panel, []).append(_row(parameter, ctx))
    for panel, rows in panels.items():
        with formatter.section(panel):
            formatter.write_dl(rows, col_max=NAMES)


def _row(parameter: Any, ctx: Any) -> tuple[str, str]:
    """Return the names of a parameter with the kind of its value, and its help text with its default."""
    names, text = parameter.get_help_record(ctx)
    names = re.sub(r" ?<([^>]+)>", lambda kind: " " + TYPES.get(kind[1].lower(), kind[1]), names)
    if parameter.param_type_name == "argument":
        names = parameter.metavar or names.split()[0]
    return names, DEFAULT.sub(" ", BOUNDS.sub("", text))
