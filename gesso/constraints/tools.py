"""The texts of tool calls, in the model's own syntax, with bytes for its special tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gesso.constraints.limits import Limits
from gesso.constraints.schema.compile import CompiledConstraint, schema_term
from gesso.constraints.schema.dialects import CALL, CALL_END, CALL_QUOTE, CALLS
from gesso.constraints.term import Term
from gesso.constraints.terms import alt, literal, one_of, optional, repeat, seq
from gesso.errors import InputError

TAGS = {"<|tool_call>": CALL, "<tool_call|>": CALL_END, '<|"|>': CALL_QUOTE}  # special token: its byte in a text
CHOICES = ("auto", "none", "required")
MAX_CALLS = 8  # of one answer
# Keywords from which the arguments of a tool follow.
OBJECT_KEYWORDS = frozenset(
    {"properties", "required", "additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf"}
)
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def chosen(tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the functions of which one must be called; none if the model decides or must not call any."""
    functions = [tool["function"] for tool in tools]
    if isinstance(choice, str) and choice in CHOICES:
        if choice == "required" and not functions:
            raise InputError('tool_choice is "required", but there are no tools; pass tools')
        return functions if choice == "required" else []
    name = choice if isinstance(choice, str) else _function_name(choice)
    named = [function for function in functions if function["name"] == name]
    if not named:
        names = ", ".join(repr(function["name"]) for function in functions) or "none"
        raise InputError(f"tool_choice names {name!r}; the tools are: {names}")
    return named


def _function_name(choice: Mapping[str, Any]) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(
            f"tool_choice must be one of {', '.join(CHOICES)}, the name of a tool, or "
            f'{{"type": "function", "function": {{"name": …}}}}; got {choice!r:.80}'
        )
    return str(function["name"])


def calls_term(functions: Sequence[Mapping[str, Any]], *, parallel: bool, limits: Limits) -> CompiledConstraint:
    """Return one call of these functions, or up to eight with `parallel`, with valid arguments."""
    calls = [_call(function, limits) for function in functions]
    any_call = seq(_mark("<|tool_call>"), alt(call.term for call in calls), _mark("<tool_call|>"))
    return CompiledConstraint(
        term=repeat(any_call, 1, MAX_CALLS) if parallel else any_call,
        warnings=tuple(warning for call in calls for warning in call.warnings),
        checked=tuple(pointer for call in calls for pointer in call.checked),
    )


def optional_calls_term(
    functions: Sequence[Mapping[str, Any]], *, parallel: bool, limits: Limits
) -> CompiledConstraint:
    """Return any text, which calls of these functions with valid arguments may follow."""
    calls = calls_term(functions, parallel=parallel, limits=limits)
    text = repeat(one_of((1 << CALL) - 1), 0, None)
    return replace(calls, term=seq(text, optional(calls.term)))


def _call(function: Mapping[str, Any], limits: Limits) -> CompiledConstraint:
    name, parameters = function["name"], function.get("parameters") or {}
    if parameters.get("type", "object") != "object":
        raise InputError(f"the parameters of the tool {name!r} must be the schema of an object")
    if not parameters.keys() & OBJECT_KEYWORDS or (
        parameters.get("properties") == {} and not parameters.keys() & (OBJECT_KEYWORDS - {"properties"})
    ):
        parameters = NO_ARGUMENTS  # a tool that declares no arguments takes none
    try:
        arguments = schema_term({"type": "object", **parameters}, limits=limits, dialect=CALLS)
    except InputError as error:
        raise InputError(f"tool {name!r}: {error}") from None
    return CompiledConstraint(
        term=seq(literal(f"call:{name}"), arguments.term),
        warnings=tuple(f"tool {name!r}: {warning}" for warning in arguments.warnings),
        checked=tuple(f"tool {name!r}: {pointer}" for pointer in arguments.checked),
    )


def _mark(tag: str) -> Term:
    return one_of(1 << TAGS[tag])
