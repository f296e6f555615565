"""Tool calls that the model is free to make, also of tools whose schema is not supported.

Where a call is required, such a schema is rejected. Here that would reject a conversation because of a tool that may
never be called. Instead, the arguments of this tool may be any text, and a warning names the tool.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gesso.constraints.charset import ANY, char_class
from gesso.constraints.limits import Limits
from gesso.constraints.schema.compile import CompiledConstraint
from gesso.constraints.term import Term
from gesso.constraints.terms import alt, literal, one_of, repeat, seq
from gesso.constraints.tools import MAX_CALLS, TAGS, calls_term, optional_calls_term
from gesso.errors import InputError


def free_calls(functions: Sequence[Mapping[str, Any]], *, parallel: bool, limits: Limits) -> CompiledConstraint:
    """Return any text, which calls of these functions may follow, with valid arguments where their schema allows."""
    supported: list[Mapping[str, Any]] = []
    unsupported: dict[str, str] = {}  # reason by name
    for function in functions:
        try:
            calls_term([function], parallel=False, limits=limits)
            supported.append(function)
        except InputError as error:
            unsupported[function["name"]] = str(error)
    if not unsupported:
        return optional_calls_term(supported, parallel=parallel, limits=limits)
    calls = [calls_term([function], parallel=False, limits=limits) for function in supported]
    any_call = alt([*(call.term for call in calls), *map(_unconstrained, unsupported)])
    text = repeat(one_of((1 << min(TAGS.values())) - 1), 0, None)
    warnings = [f"arguments are not constrained: {reason}" for reason in unsupported.values()]
    for call in calls:
        warnings += call.warnings
    return CompiledConstraint(
        term=seq(text, repeat(any_call, 0, MAX_CALLS if parallel else 1)),
        warnings=tuple(warnings),
        checked=tuple(pointer for call in calls for pointer in call.checked),
    )


def _unconstrained(name: str) -> Term:
    """Return the call of a function with any arguments."""
    call, end, quote = (one_of(1 << TAGS[tag]) for tag in ("<|tool_call>", "<tool_call|>", '<|"|>'))
    return seq(call, literal(f"call:{name}{{"), repeat(alt([char_class(ANY), quote]), 0, None), literal("}"), end)
