"""Tool calls as a regular expression: the model's own syntax, with its special tokens as marks."""

from collections.abc import Mapping, Sequence
from typing import Any

from gesso.constraints.limits import Limits
from gesso.constraints.regex import quote
from gesso.constraints.schema.compile import schema_regex
from gesso.constraints.schema.dialects import CALL, CALL_END, CALL_QUOTE, CALLS
from gesso.errors import InputError

# What the marks of an expression stand for.
TAGS = {"<|tool_call>": CALL, "<tool_call|>": CALL_END, '<|"|>': CALL_QUOTE}
MARKS = {mark: 0xF8 + n for n, mark in enumerate(TAGS.values())}  # as bytes of the automaton
CHOICES = ("auto", "none", "required")
MOST_CALLS = 8  # of one answer
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def chosen(tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The functions one of which has to be called; none: the model decides, or must not call any."""
    functions = [tool["function"] for tool in tools]
    if isinstance(choice, str) and choice in CHOICES:
        if choice == "required" and not functions:
            raise InputError('tool_choice is "required", and there are no tools')
        return functions if choice == "required" else []
    name = choice if isinstance(choice, str) else _named(choice)
    found = [function for function in functions if function["name"] == name]
    if not found:
        known = ", ".join(repr(function["name"]) for function in functions) or "none"
        raise InputError(f"tool_choice names {name!r}; the tools are: {known}")
    return found


def calls_regex(functions: Sequence[Mapping[str, Any]], *, parallel: bool, limits: Limits) -> str:
    """One call, or with `parallel` up to eight, of functions with arguments that are valid under their parameters."""
    found = []
    for function in functions:
        parameters = function.get("parameters") or {}
        if not parameters.keys() & {"properties", "required", "additionalProperties", "$ref", "anyOf"} or (
            parameters.get("properties") == {} and "additionalProperties" not in parameters
        ):
            parameters = NO_ARGUMENTS  # nothing is said of any: the tool takes none
        if parameters.get("type", "object") != "object":
            raise InputError(f"the parameters of the tool {function['name']!r} must be a schema of an object")
        try:
            arguments = schema_regex({"type": "object", **parameters}, limits=limits, dialect=CALLS)
        except InputError as error:
            raise InputError(f"tool {function['name']!r}: {error}") from None
        found.append(f"call:{quote(function['name']).text}(?:{arguments})")
    call = f"{CALL}(?:{'|'.join(found)}){CALL_END}"
    return f"(?:{call}){{1,{MOST_CALLS}}}" if parallel else call


def _named(choice: Mapping[str, Any]) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(
            f"tool_choice must be one of {', '.join(CHOICES)}, the name of a tool, or "
            f'{{"type": "function", "function": {{"name": …}}}}; got {choice!r:.80}'
        )
    return str(function["name"])
