"""Check a finished answer against its JSON schema, by the `jsonschema` package.

The automaton of a constraint keeps most of a schema by itself, but not all: the values of an array may have to differ,
and a key may occur once only. So every answer is checked before it is returned.

A schema is read as the constraint reads it: OpenAPI's `nullable` counts, a pattern that Python cannot read is left to
the constraint, and nothing is ever fetched from another host.

Functions import `jsonschema` when they need it: with the packages for every format, that takes a second.
"""

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

from gesso.chat.answer import ToolCall

KEPT = 64  # validators of the schemas used last
# For answers that need more than the usual 1000 frames: several hundred levels of nesting.
DEEP, STACK_BYTES = 4000, 64 * 2**20
SPARE = 100  # frames that a keyword needs until the next one
MESSAGE_CHARACTERS = 200
UNREADABLE = "it cannot be checked"
# Keywords whose check searches for a regular expression.
SEARCHING = ("pattern", "patternProperties", "additionalProperties", "unevaluatedProperties")


def warm_up() -> None:
    """Import the package now instead of with the first check: in a process that forks, once for all its children."""
    import jsonschema  # noqa: F401


def schema_problem(schema: Mapping[str, Any] | bool, text: str) -> str | None:
    """Return the place and the reason why a text is not valid JSON under a schema; None if it is."""
    return _at_any_depth(lambda: _text_problem(schema, text))


def value_problem(schema: Mapping[str, Any] | bool, value: Any) -> str | None:
    """Return the place and the reason why a JSON value is not valid under a schema; None if it is."""
    return _at_any_depth(lambda: _value_problem(schema, value))


def calls_problem(
    parameters: Mapping[str, Mapping[str, Any]], calls: Sequence[ToolCall], *, required: bool
) -> str | None:
    """Return what is wrong with the calls of an answer; None if nothing is. `parameters` are the tools' schemas."""
    if required and not calls:
        return "it has no tool call that can be read"
    for call in calls:
        problem = value_problem({"type": "object", **parameters[call.name]}, call.arguments)
        # A call that the model was free to make is not constrained either if its schema cannot be read.
        if problem and (required or UNREADABLE not in problem):
            return f"tool {call.name}, argument {problem}"
    return None


def _text_problem(schema: Mapping[str, Any] | bool, text: str) -> str | None:
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_reject_constant)
    except ValueError as error:
        return f"$: not JSON: {error}"
    return _value_problem(schema, value)


def _value_problem(schema: Mapping[str, Any] | bool, value: Any) -> str | None:
    from jsonschema.exceptions import best_match

    try:
        found = best_match(_validator(json.dumps(schema)).iter_errors(value))
    except RecursionError:
        raise
    except Exception as error:  # of a schema that the package cannot read: the answer must not pass unchecked
        return f"$: {UNREADABLE}: {_short(f'{type(error).__name__}: {error}')}"
    return None if found is None else f"{found.json_path}: {_short(found.message)}"


def _at_any_depth(check: Callable[[], str | None]) -> str | None:
    """Run a check. If the answer is nested too deeply for the stack, run it in a thread with a larger one."""
    with suppress(RecursionError):
        return check()
    found: list[str | None] = []

    def run() -> None:
        try:
            found.append(check())
        except RecursionError:
            found.append("$: it is nested too deeply to be checked")

    frames, size = sys.getrecursionlimit(), threading.stack_size(STACK_BYTES)
    sys.setrecursionlimit(max(frames, DEEP))
    try:
        thread = threading.Thread(target=run)
        thread.start()
        threading.stack_size(size)
        thread.join()
    finally:
        sys.setrecursionlimit(frames)
    return found[0]


def _short(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARACTERS else f"{message[:MESSAGE_CHARACTERS]}…"


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        keys = [key for key, _ in members]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} occurs twice in an object")
    return found


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


# --- validators -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=KEPT)
def _validator(source: str) -> Any:
    """Return the validator of a schema, given as JSON."""
    from jsonschema_specifications import REGISTRY

    schema = json.loads(source)
    names_draft = isinstance(schema, dict) and "$schema" in schema
    kind = _extended(_draft(schema), not names_draft)
    if names_draft:
        # Where a reference leads back to the root, the package would choose the plain validator by this keyword.
        del schema["$schema"]
    # With a registry of its own, the validator fetches nothing: an unknown reference is an error.
    return kind(schema, registry=REGISTRY, format_checker=kind.FORMAT_CHECKER)


def _draft(schema: Any) -> Any:
    """Return the validator class of a schema's draft: by `$schema`, or an older one if the schema needs it."""
    from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator
    from jsonschema.validators import validator_for

    named = validator_for(schema, default=Draft202012Validator)
    found = {key: type(value) for key, value in _members(schema) if isinstance(value, bool | list)}
    if bool in (found.get("exclusiveMinimum"), found.get("exclusiveMaximum")):
        return Draft4Validator
    return Draft7Validator if found.get("items") is list and named is Draft202012Validator else named


def _members(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield all members of all objects in a schema."""
    waiting = [schema]
    while waiting:
        match waiting.pop():
            case dict() as members:
                yield from members.items()
                waiting += members.values()
            case list() as items:
                waiting += items


Check = Callable[[Any, Any, Any, Any], Any]


@cache
def _extended(kind: Any, nullable: bool) -> Any:
    """Return a validator class that reads schemas as our constraints do."""
    from jsonschema.validators import extend

    checks: dict[str, Check] = dict(kind.VALIDATORS)
    if nullable:  # a keyword of OpenAPI; in a schema that names a draft, it has no meaning
        checks["type"] = _nullable(checks["type"])
    for name in SEARCHING:
        if name in checks:
            checks[name] = _readable(checks[name])
    return extend(kind, {name: _bounded(check) for name, check in checks.items()})


def _nullable(check: Check) -> Check:
    """Accept null where OpenAPI's `nullable` does."""

    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        return () if instance is None and schema.get("nullable") is True else check(validator, value, instance, schema)

    return checked


def _readable(check: Check) -> Check:
    """Skip a regular expression that Python cannot read, such as one with `\\p{L}`: the constraint keeps to it."""

    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        with suppress(re.error):
            yield from check(validator, value, instance, schema) or ()

    return checked


def _bounded(check: Check) -> Check:
    """Raise RecursionError in time. Deeper down, it would end the process: the package's maps are written in Rust."""

    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        frame, room = sys._getframe(), sys.getrecursionlimit() - SPARE
        while frame.f_back is not None:
            frame, room = frame.f_back, room - 1
        if room < 0:
            raise RecursionError
        return check(validator, value, instance, schema)

    return checked
