"""Check type and bounds of values from files and callers, with errors that name the field and the bounds."""

import re
import reprlib
from collections.abc import Mapping
from typing import Any

from gesso.errors import CheckpointError, GessoError, InputError

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def shown(value: Any) -> str:
    """Return a shortened repr of a value, so that a hostile file cannot fill the terminal."""
    return _short.repr(value)


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def integer(value: Any, name: str, low: float, high: float, error: type[GessoError] = CheckpointError) -> int:
    """Return `value` if it is an integer from `low` to `high`."""
    if not is_integer(value) or not low <= value <= high:
        raise error(f"{name} must be an integer from {low:,} to {high:,}, got {shown(value)}")
    return int(value)


def number(value: Any, name: str, low: float, high: float, error: type[GessoError] = CheckpointError) -> float:
    """Return `value` if it is a number from `low` to `high`; NaN never is."""
    if not (is_integer(value) or isinstance(value, float)) or not low <= value <= high:
        raise error(f"{name} must be a number from {low:g} to {high:g}, got {shown(value)}")
    return value


def flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise CheckpointError(f"{name} must be true or false, got {shown(value)}")
    return value


def mapping(value: Any, name: str) -> Mapping[str, Any]:
    """Return `value` if it is an object, or an empty one for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{name} must be an object, got {shown(value)}")
    return value


def strings(value: Any, name: str) -> list[str]:
    """Return `value` if it is a list of strings, or an empty one for None."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise CheckpointError(f"{name} must be a list of strings, got {shown(value)}")
    return value


def check_adapter_name(name: Any) -> None:
    """Raise InputError unless this can be the name of an adapter, which is part of the names of its parameters."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name):
        raise InputError(f"the name of an adapter must consist of letters, digits, - and _, got {shown(name)}")
