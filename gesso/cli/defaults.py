"""Defaults of options from a configuration file. The command line and environment variables take precedence.

A key at the top level applies to every command that has the option; a table has the options of one command:

    model = "path/to/checkpoint"

    [generate]
    max-new-tokens = 200
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from gesso.errors import InputError
from gesso.files import read_text
from gesso.removed import removed_option

LIMIT = 1 << 20  # bytes

Options = Mapping[str, Any]  # a command's options by name, without the dashes


def config_path() -> Path | None:
    """Return the configuration file, or None if there is none. An empty GESSO_CONFIG means none."""
    if (given := os.environ.get("GESSO_CONFIG")) is not None:
        return Path(given).expanduser() if given else None
    directory = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    path = Path(directory).expanduser() / "gesso" / "config.toml"
    return path if path.exists() else None


def read_defaults(path: Path, commands: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the defaults of each command by parameter, as typer's `default_map`. Unknown names are errors."""
    try:
        content = tomllib.loads(read_text(path, LIMIT))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    options = {name: _options(command) for name, command in commands.items()}
    all_options = {option for names in options.values() for option in names}
    shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    for key in shared.keys() - all_options:
        raise _unknown_option(path, key, all_options)
    for key in tables.keys() - options.keys():
        raise _unknown(path, f"command [{key}]", key, options)
    return {
        name: _values(
            path, commands[name], has, {key: shared[key] for key in shared if key in has} | tables.get(name, {})
        )
        for name, has in options.items()
    }


def _options(command: Any) -> Options:
    """Return the options of a command by their long names, such as max-new-tokens."""
    return {
        name.removeprefix("--"): item
        for item in command.params
        if item.param_type_name == "option"
        for name in item.opts
        if name.startswith("--")
    }


def _values(path: Path, command: Any, options: Options, given: Mapping[str, Any]) -> dict[str, Any]:
    context, values = typer.Context(command, info_name=command.name), {}
    for key, value in given.items():
        if key not in options:
            raise _unknown_option(path, key, options, command.name)
        item = options[key]
        try:
            values[item.name] = _words(item, value)
            item.process_value(context, values[item.name])
        except (typer.TyperException, InputError) as error:
            message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
            raise InputError(f"{path}: {key} for gesso {command.name}: {message}") from None
    return values


def _words(item: Any, value: Any) -> Any:
    """Return a value as the command line would give it: text, or a list of texts if the option may be repeated."""
    if item.multiple:
        return [_word(one) for one in (value if isinstance(value, list) else [value])]
    if not item.is_flag:
        return _word(value)
    if not isinstance(value, bool):
        raise InputError(f"expected true or false, got {value!r}")
    return value


def _word(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"expected one text or number, got {value!r}")
    return str(value)


def _unknown_option(path: Path, key: str, known: Iterable[str], command: str | None = None) -> InputError:
    if removed := removed_option(command, f"--{key}"):
        return InputError(f"{path}: {removed}")
    return _unknown(path, f"option {key!r} of [{command}]" if command else f"option {key!r}", key, known)


def _unknown(path: Path, what: str, key: str, known: Iterable[str]) -> InputError:
    close = get_close_matches(key.replace("_", "-"), known, 1)
    advice = f"is {close[0]!r} meant?" if close else "gesso --help lists the commands, and each command its options"
    return InputError(f"{path}: unknown {what}; {advice}")
