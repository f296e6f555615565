"""The regular expression of tool calls, in the model's own syntax, with marks for its special tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from gesso.constraints.limits import Limits
from gesso.constraints.regex import literal
from gesso.constraints.schema.compile import schema_regex
from gesso.constraints.schema.dialects import CALL, CALL_END, CALL_QUOTE, CALLS
from gesso.errors import InputError

TAGS = {"<|tool_call>": CALL, "<tool_call|>": CALL_END, '<|"|>': CALL_QUOTE}  # special token: mark in an expression
MARKS = {mark: 0xF8 + n for n, mark in enumerate(TAGS.values())}  # mark: byte in the automaton
CHOICES = ("auto", "none", "required")
MAX_CALLS = 8  # of one answer
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def chosen(tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the functions one of which must be called; none if the model decides or must not call any."""
    functions = [tool["function"] for tool in tools]
    if isinstance(choice, str) and choice in CHOICES:
        if choice == "required" and not functions:
            raise InputError('tool_choice is "required", but there are no tools; pass tools')
        return functions if choice == "required" else []
    name = choice if isinstance(choice, str) else _function_name(choice)
    found = [function for function in functions if function["name"] == name]
    if not found:
        known = ", ".join(repr(function["name"]) for function in functions) or "none"
        raise InputError(f"tool_choice names {name!r}; the tools are: {known}")
    return found


def _function_name(choice: Mapping[str, Any]) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(
            f"tool_choice must be one of {', '.join(CHOICES)}, the name of a tool, or "
            f'{{"type": "function", "function": {{"name": …}}}}; got {choice!r:.80}'
        )
    return str(function["name"])


def calls_regex(functions: Sequence[Mapping[str, Any]], *, parallel: bool, limits: Limits) -> str:
    """Match one call of these functions, or up to eight with `parallel`, with valid arguments."""
    found = []
    for function in functions:
        parameters = function.get("parameters") or {}
        if not parameters.keys() & {"properties", "required", "additionalProperties", "$ref", "anyOf"} or (
            parameters.get("properties") == {} and "additionalProperties" not in parameters
        ):
            parameters = NO_ARGUMENTS  # a tool that declares no arguments takes none
        if parameters.get("type", "object") != "object":
            raise InputError(f"the parameters of the tool {function['name']!r} must be the schema of an object")
        try:
            arguments = schema_regex({"type": "object", **parameters}, limits=limits, dialect=CALLS)
        except InputError as error:
            raise InputError(f"tool {function['name']!r}: {error}") from None
        found.append(f"call:{literal(function['name']).text}(?:{arguments})")
    call = f"{CALL}(?:{'|'.join(found)}){CALL_END}"
    return f"(?:{call}){{1,{MAX_CALLS}}}" if parallel else call
