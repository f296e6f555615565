"""`gesso settings`: the diffusion settings, with their defaults and bounds."""

import textwrap
from dataclasses import asdict
from typing import Annotated

import typer

from gesso.cli.options import OWN_OPTION, Json, as_text
from gesso.cli.terminal import print_json, print_text
from gesso.errors import InputError
from gesso.settings import OPTIONS, PRESET, PRESETS, Setting, changed, unknown_settings

WIDTH = 80  # columns


def settings(
    name: Annotated[str | None, typer.Argument(help="Show this setting only.")] = None,
    json: Json = False,
) -> None:
    """List the diffusion settings. Those without an option of their own are given with --set NAME=VALUE."""
    if name is not None and name.replace("-", "_") not in OPTIONS:
        raise InputError(unknown_settings([name]))
    shown = list(OPTIONS.values()) if name is None else [OPTIONS[name.replace("-", "_")]]
    if json:
        print_json([asdict(setting) for setting in shown])
        return
    print_text("\n".join(_described(setting) for setting in shown))
    if name in (None, PRESET.name):
        print_text("\nPresets:")
        for preset in PRESETS:
            values = ", ".join(f"{key}={as_text(value)}" for key, value in changed(PRESETS[preset]).items())
            print_text(_indented(f"{preset}: {values or 'the defaults'}"))


def _described(setting: Setting) -> str:
    default = "the checkpoint's" if setting.default is None else as_text(setting.default)
    values = "true, false" if setting.kind == "boolean" else setting.range
    option = f"--{setting.name}" if setting.name in OWN_OPTION else f"--set {setting.name}"
    return "\n".join([f"{option}={default}", _indented(setting.help), _indented(f"Values: {values}")])


def _indented(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
