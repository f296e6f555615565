"""Check single values of a schema: scalars by their facts, others with the `jsonschema-rs` package."""

import contextlib
import re
from functools import cached_property
from typing import Any
from urllib.parse import quote

from gesso.constraints.regex import pattern_term
from gesso.constraints.schema.dialects import JSON
from gesso.constraints.schema.facts import NEGATED, NUMBERS, Facts, Subschema, type_of
from gesso.constraints.schema.formats import format_term
from gesso.constraints.schema.numbers import Bound, none_between
from gesso.constraints.schema.strings import matches


def fits(facts: Facts, value: Any) -> bool:
    """Return whether a value satisfies the facts. Of arrays and objects, only the type is compared."""
    kind = type_of(value)
    if kind not in facts.types:
        return False
    if kind in NUMBERS:
        number = Bound.read(value, strict=False)
        if none_between(facts.low, number) or none_between(number, facts.high):
            return False
        return facts.step is None or number.value % facts.step == 0
    if kind != "string":
        return True
    if len(value) < facts.min_length or (facts.max_length is not None and len(value) > facts.max_length):
        return False
    if not all(_contains(pattern, value) for pattern in facts.patterns):
        return False
    if any(_contains(pattern, value) for pattern in facts.other_patterns):
        return False
    return all(matches(format_term(name, JSON), JSON, value) for name in facts.formats)


def _contains(pattern: str, text: str) -> bool:
    if not set(pattern) & set("*+{"):  # faster, and without repetition it cannot take exponential time
        with contextlib.suppress(re.error):
            return re.search(pattern, text) is not None
    return matches(pattern_term(pattern, JSON.char, JSON.any_char), JSON, text)


class Validity:
    """Tells whether a value satisfies a subschema of one schema."""

    def __init__(self, root: Any) -> None:
        self.root = root

    @cached_property
    def _validators(self) -> Any:
        """The validators of all subschemas, by pointer."""
        from jsonschema_rs import validator_map_for

        return validator_map_for(self.root, validate_formats=True, offline=True)

    def allows(self, place: Subschema, value: Any) -> bool:
        """Return whether a value satisfies a subschema; True if the package cannot tell."""
        pointer = place.pointer.replace(f"/{NEGATED}/not", "")
        opposite = pointer.endswith(f"/{NEGATED}")
        pointer = pointer.removesuffix(f"/{NEGATED}")
        try:
            validator = self._validators.get(pointer) or self._validators.get(quote(pointer, safe="#/~$()*!,;=:@&'+"))
            return validator is None or validator.is_valid(value) != opposite
        except Exception:  # an unresolvable reference or an unsupported pattern: the finished answer is checked
            return True
