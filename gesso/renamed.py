"""Names that still work, with what replaces them. Each use gives a warning, and the next release rejects them.

Python warns with `RenamedWarning`, the command line prints the warning, and HTTP returns it with the answer. To end the
support of a name, move it to `gesso/removed.py`.
"""

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gesso.checks import shown
from gesso.errors import InputError

SAMPLERS: Mapping[str, str] = MappingProxyType({"autoregressive": "tokens", "verified": "verified"})  # to `write`
PRESET = "verified"
DECODES: Mapping[str, str | None] = MappingProxyType({"auto": None, "canvas": "canvas", "tokens": "tokens"})
SOON = "the former name works until the next release"


class RenamedWarning(FutureWarning):
    """A former name was used."""


def is_former(setting: str, value: Any) -> bool:
    """Return whether a value of a setting is a former name."""
    return (setting == "sampler" and isinstance(value, str) and value in SAMPLERS) or (
        setting == "preset" and value == PRESET
    )


def translate(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return options under their present names, with a warning for each former one."""
    options, messages = dict(given), list[str]()
    if is_former("sampler", options.get("sampler")):
        sampler = options.pop("sampler")
        messages.append(_write(options, SAMPLERS[sampler], f"sampler={sampler!r}"))
    if is_former("preset", options.get("preset")):
        options = {"greed": 1.0, **options, "preset": "balanced"}  # the preset began with the settings of this one
        messages.append(_write(options, "verified", f"preset={PRESET!r}", "greed=1"))
    if "decode" in options:
        decode = options.pop("decode")
        if decode is not None:
            messages.append(_write(options, written(decode), f"decode={decode!r}"))
    return options, messages


def translated(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options under their present names, and warn of former ones."""
    options, messages = translate(given)
    for message in messages:
        warn(message)
    return options


def written(decode: str) -> str | None:
    """Return the value of `write` for one of `decode`, the former name."""
    if decode not in DECODES:
        raise InputError(f"decode must be one of {', '.join(DECODES)}, got {shown(decode)}; its present name is write")
    return DECODES[decode]


def warn(message: str) -> None:
    warnings.warn(message, RenamedWarning, stacklevel=4)


def _write(options: dict[str, Any], write: str | None, former: str, *others: str) -> str:
    """Set `write` in the options unless it is left open, and return the warning."""
    if write is None:
        return f"{former} is the default of write now: leave it out; {SOON}"
    if (given := options.get("write")) not in (None, write):
        raise InputError(f"{former} means write={write!r}, but write={given!r} was given; leave out {former}")
    options["write"] = write
    return f"{former} is now {' with '.join([f'write={write!r}', *others])}; {SOON}"
