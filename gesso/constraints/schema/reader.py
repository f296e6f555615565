"""Read a JSON schema into facts: follow references and list the alternatives of `anyOf`, `oneOf`, `if` and `not`.

Each alternative describes only valid values. An assertion that facts cannot express is left out and listed in
`checked`: the finished answer is checked for it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gesso.constraints.budget import check_time
from gesso.constraints.limits import Limits
from gesso.constraints.schema.drafts import draft_warning
from gesso.constraints.schema.facts import (
    Facts,
    Items,
    Properties,
    Subschema,
    clearly_apart,
    identity,
    intersect,
    joined_values,
    type_of,
)
from gesso.constraints.schema.formats import FORMATS
from gesso.constraints.schema.keywords import (
    CHECKED_CONTENT,
    NOT_ENFORCED,
    REFERENCES,
    facts_of_keywords,
    members,
    named_members,
    short,
    unexpected,
)
from gesso.constraints.schema.negation import negated
from gesso.constraints.schema.references import References
from gesso.constraints.schema.validity import Validity, fits
from gesso.errors import InputError

MAX_LEVELS = 64  # subschemas of the same value inside each other, references included
MAX_NEST = 256  # lists and objects inside each other
MAX_ALTERNATIVES = 256  # at one place
MAX_COMPARED = 48  # members of a oneOf that are compared with each other
MAX_READ = 200_000  # subschemas


def check_json(schema: Any, limits: Limits) -> None:
    """Reject a schema that is too large, too deep or not JSON. Does not recurse, so any depth is safe."""
    waiting: list[tuple[Any, int]] = [(schema, 0)]
    size = 0
    while waiting:
        value, level = waiting.pop()
        if level > MAX_NEST:
            raise InputError(f"the schema nests deeper than {MAX_NEST} levels; flatten it")
        size += _size(value)
        if size > limits.schema_bytes:
            raise InputError(
                f"the schema is larger than {limits.schema_bytes:,} bytes (limits.schema_bytes); "
                "shorten it or raise the limit"
            )
        if isinstance(value, Mapping):
            waiting.extend((inner, level + 1) for pair in value.items() for inner in pair)
            if any(not isinstance(name, str) for name in value):
                raise InputError("the schema has a key that is not a string; JSON allows only strings")
        elif isinstance(value, list | tuple):
            waiting.extend((inner, level + 1) for inner in value)


def _size(value: Any) -> int:
    """Return about the number of characters of a value, without the values inside it."""
    if isinstance(value, str | list | tuple | Mapping):
        return len(value) + 2
    if value is None or isinstance(value, bool):
        return 4
    if isinstance(value, int):
        if value.bit_length() > 13_000:  # Python refuses to print integers of more than 4,300 digits
            raise InputError("the schema contains an integer of about 4,000 digits or more; use a smaller one")
        return value.bit_length() // 3 + 1
    if isinstance(value, float) and math.isfinite(value):
        return len(repr(value))
    raise InputError(f"the schema contains {value!r}, which is not a JSON value")


class SchemaReader:
    """Reads the subschemas of one schema, each of them once."""

    def __init__(self, root: Any) -> None:
        self.references = References(root)
        self.validity = Validity(root)
        self.warnings: dict[str, str] = {}
        warning = draft_warning(root)
        if warning is not None:
            self.warnings[warning] = "#/$schema"
        self.checked: dict[str, None] = {}
        self.alternatives: dict[tuple[str, ...], list[Facts]] = {}  # by the pointers of several subschemas
        self.places: dict[str, list[Facts]] = {}  # by the pointer of one
        self.reading: dict[str, None] = {}  # pointers of the subschemas being read, to detect endless references

    def read(self, places: tuple[Subschema, ...]) -> list[Facts]:
        """Return the alternatives that satisfy all these subschemas at once."""
        key = tuple(place.pointer for place in places)
        if key not in self.alternatives:
            alternatives = [Facts()]
            for place in places:
                alternatives = self.both(alternatives, self.place(place), place.pointer)
            valid = [self._with_valid(facts, places) for facts in alternatives]
            self.alternatives[key] = [facts for facts in valid if facts.possible]
        return self.alternatives[key]

    def place(self, place: Subschema) -> list[Facts]:
        """Return the alternatives of one subschema. Values of an enum are not yet compared with other keywords."""
        check_time()
        if place.pointer not in self.places:
            if place.pointer in self.reading:
                raise InputError(
                    f"{place.pointer} refers to itself for the same value, which has no end; "
                    "refer to it from a property or an item instead"
                )
            if len(self.reading) > MAX_LEVELS:
                raise InputError(f"{place.pointer}: schemas nest deeper than {MAX_LEVELS} levels, references included")
            if len(self.places) > MAX_READ:
                raise InputError(f"{place.pointer}: the schema has too many parts after its references are followed")
            self.reading[place.pointer] = None
            alternatives = self._read(self.references.entered(place))
            del self.reading[place.pointer]
            self.places[place.pointer] = alternatives
        return self.places[place.pointer]

    def check(self, pointer: str) -> None:
        """Leave an assertion to the check of the finished answer."""
        self.checked[pointer] = None

    def warn(self, text: str, place: Subschema) -> None:
        self.warnings.setdefault(text, place.pointer)

    def both(self, some: list[Facts], others: list[Facts], pointer: str) -> list[Facts]:
        """Return the alternatives that satisfy one of each list."""
        check_time()
        if len(some) * len(others) > MAX_ALTERNATIVES and min(len(some), len(others)) > 1:
            self.check(pointer)
            return some
        alternatives = (intersect(a, b) for a in some for b in others)
        return [facts for facts in alternatives if facts.possible and (len(some) == 1 or self._has_members(facts))]

    def _has_members(self, facts: Facts) -> bool:
        """Return whether each required member can have a value. Only its own facts are considered."""
        if len(facts.properties) < 2 or len(self.reading) > MAX_LEVELS // 2:
            return True
        for name in facts.required:
            places = tuple(shape.named[name] for shape in facts.properties if name in shape.named)
            if len(places) > 1 and not any(place.pointer in self.reading for place in places) and not self.read(places):
                return False
        return True

    def _with_valid(self, facts: Facts, places: tuple[Subschema, ...]) -> Facts:
        """Drop the values of an enum that other keywords forbid."""
        if facts.values is None:
            return facts
        values = [value for value in facts.values if fits(facts, value)]
        if facts.excluded:
            excluded = {identity(value) for value in facts.excluded}
            values = [value for value in values if identity(value) not in excluded]
        values = [
            value
            for value in values
            if not isinstance(value, list | tuple | Mapping) or all(self.validity.allows(p, value) for p in places)
        ]
        return replace(facts, values=tuple(values))

    def _read(self, place: Subschema) -> list[Facts]:
        schema = place.schema
        if isinstance(schema, bool):
            return [Facts(place.pointer)] if schema else []
        if not isinstance(schema, Mapping):
            raise InputError(f"{place.pointer} is {short(schema)}: a schema is an object, true or false")
        if self.references.draft <= 7 and "$ref" in schema:  # its siblings have no meaning
            return self.place(self.references.targets(place, "$ref")[0])
        alternatives = [self._with_known_formats(self._keyword_facts(place), place)]
        for keyword in REFERENCES:
            if keyword in schema:
                alternatives = self.both(alternatives, self._referred(place, keyword), f"{place.pointer}/{keyword}")
        for member in members(place, "allOf"):
            alternatives = self.both(alternatives, self.place(member), member.pointer)
        if "anyOf" in schema:
            union = joined_values([facts for member in members(place, "anyOf") for facts in self.place(member)])
            alternatives = self.both(alternatives, union, f"{place.pointer}/anyOf")
        if "oneOf" in schema:
            alternatives = self._one_of(place, alternatives)
        if "if" in schema:
            alternatives = self._condition(place, alternatives)
        if "not" in schema:
            inner = place.child(schema["not"], "not")
            others, exact = negated(self, inner)
            alternatives = self._unless(alternatives, others, exact, inner.pointer)
        alternatives = self._dependencies(place, alternatives)
        if "unevaluatedProperties" in schema:
            alternatives = self._without_others(place, alternatives)
        if "unevaluatedItems" in schema:
            alternatives = [self._without_more(place, facts) for facts in alternatives]
        return alternatives

    def _referred(self, place: Subschema, keyword: str) -> list[Facts]:
        """Return the alternatives of a reference: those of all its possible targets."""
        targets = self.references.targets(place, keyword)
        if len(targets) > 1:
            self.check(f"{place.pointer}/{keyword}")
            # A target that contains the reference, for the same value, would have no end.
            targets = [target for target in targets if target.pointer not in self.reading]
        return joined_values([facts for target in targets for facts in self.place(target)])

    def _keyword_facts(self, place: Subschema) -> Facts:
        def ignored(keyword: str, place: Subschema) -> None:
            reason = NOT_ENFORCED.get(keyword)
            if reason is None:
                self.warn(f"the keyword {keyword!r} is unknown and was ignored", place)
            elif self.references.draft in (6, 7) and place.schema[keyword] == CHECKED_CONTENT.get(keyword):
                self.check(f"{place.pointer}/{keyword}")
            else:
                self.warn(f"the keyword {keyword!r} is not enforced: {reason}", place)

        return facts_of_keywords(place, ignored)

    def keyword_facts(self, place: Subschema) -> Facts:
        """Return the facts of a place without its applicators."""
        check_time()
        return self._with_known_formats(self._keyword_facts(place), place)

    def _with_known_formats(self, facts: Facts, place: Subschema) -> Facts:
        for name in facts.formats:
            if name not in FORMATS:
                self.warn(f"the format {name!r} is unknown and was ignored", place)
                continue
            if FORMATS[name].left:
                self.check(f"{place.pointer}/format")
            if FORMATS[name].narrowed:
                self.warn(f"the format {name!r} is narrower than its definition: {FORMATS[name].narrowed}", place)
        formats = tuple(name for name in facts.formats if name in FORMATS)
        return facts if formats == facts.formats else replace(facts, formats=formats)

    def _unless(self, alternatives: list[Facts], others: list[Facts], exact: bool, pointer: str) -> list[Facts]:
        """Restrict alternatives to those of a negation. An inexact negation lacks some alternatives."""
        remaining = self.both(alternatives, others, pointer)
        if remaining or exact:
            return remaining
        self.check(pointer)
        return alternatives

    def _condition(self, place: Subschema, alternatives: list[Facts]) -> list[Facts]:
        condition = place.child(place.schema["if"], "if")
        pointer = f"{place.pointer}/if"
        outcomes = {
            keyword: self.place(place.child(place.schema.get(keyword, True), keyword)) for keyword in ("then", "else")
        }
        # Alone, a condition matters only for the members that it evaluates.
        if not place.schema.keys() & {"then", "else", "unevaluatedProperties"}:
            return alternatives
        yes = self.both(self.place(condition), outcomes["then"], pointer)
        others, exact = negated(self, condition)
        no = self.both(others, outcomes["else"], pointer)
        if not exact and not self.both(alternatives, no, pointer):
            self.check(pointer)
            no = outcomes["else"]
        return self.both(alternatives, yes + no, pointer)

    def _dependencies(self, place: Subschema, alternatives: list[Facts]) -> list[Facts]:
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            if keyword not in place.schema:
                continue
            for name, needed in named_members(place, keyword).items():
                about = frozenset({"object"})
                absent = Facts(place.pointer, about=about, properties=(_absent(name),))
                present = Facts(place.pointer, about=about, required=(name,))
                if isinstance(needed.schema, list | tuple | str):
                    names = (needed.schema,) if isinstance(needed.schema, str) else tuple(needed.schema)
                    if not all(isinstance(required, str) for required in names):
                        raise unexpected(place, keyword, "lists of names")
                    then = [replace(present, required=tuple(dict.fromkeys((*names, name))))]
                else:
                    then = self.both([present], self.place(needed), needed.pointer)
                alternatives = self.both(alternatives, [absent, *then], needed.pointer)
        return alternatives

    def _without_others(self, place: Subschema, alternatives: list[Facts]) -> list[Facts]:
        """Apply unevaluatedProperties: each alternative lists the members that it has evaluated."""
        # If several alternatives apply at once, a member is evaluated if any of them evaluates it.
        together = bool(place.schema.keys() & {"not", "if", "anyOf", "dependentSchemas"})
        if together:
            self.check(f"{place.pointer}/unevaluatedProperties")
        others = place.child(place.schema["unevaluatedProperties"], "unevaluatedProperties")
        changed: list[Facts] = []
        for facts in alternatives:
            if any(shape.others is not None for shape in facts.properties):
                changed.append(facts)
                continue
            applying = alternatives if together else [facts]
            shapes = [shape for applied in applying for shape in applied.properties]
            names = {name: _true(place) for shape in shapes for name in shape.named}
            patterns = {pattern: _true(place) for shape in shapes for pattern, _ in shape.patterns}
            shape = Properties(names, tuple(patterns.items()), others, open=others.schema is not False)
            about = facts.about | {"object"}
            changed.append(replace(facts, about=about, properties=(*facts.properties, shape)))
        return changed

    def _without_more(self, place: Subschema, facts: Facts) -> Facts:
        if any(shape.rest is not None for shape in facts.items):
            return facts
        if facts.contains or place.schema.keys() & {"not", "if", "anyOf"}:
            self.check(f"{place.pointer}/unevaluatedItems")
            return facts
        count = max((len(shape.prefix) for shape in facts.items), default=0)
        rest = place.child(place.schema["unevaluatedItems"], "unevaluatedItems")
        shape = Items((_true(place),) * count, rest)
        return replace(facts, about=facts.about | {"array"}, items=(*facts.items, shape))

    # --- oneOf: exactly one member matches --------------------------------------------------------------------------

    def _one_of(self, place: Subschema, alternatives: list[Facts]) -> list[Facts]:
        options = members(place, "oneOf")
        pointer = f"{place.pointer}/oneOf"
        of_options = [self.place(option) for option in options]
        union = joined_values([facts for of_option in of_options for facts in of_option])
        if len(options) > MAX_COMPARED or len(union) > MAX_ALTERNATIVES:
            self.check(pointer)
            return self.both(alternatives, union, pointer)
        restricted = [self.both(alternatives, of_option, pointer) for of_option in of_options]
        exact: list[Facts] = []
        for i, of_option in enumerate(restricted):
            only_this = of_option
            for j, of_other in enumerate(restricted):
                if i == j or all(self._disjoint(a, b) for a in only_this for b in of_other):
                    continue
                others, complete = negated(self, options[j])
                if not complete or len(only_this) * len(others) > MAX_ALTERNATIVES:
                    self.check(pointer)
                    return self.both(alternatives, union, pointer)
                only_this = self.both(only_this, others, pointer)
            exact += only_this
        return exact

    def _disjoint(self, a: Facts, b: Facts, level: int = 0) -> bool:
        """Return whether no value satisfies both; False if that cannot be decided."""
        if not a.possible or not b.possible or not a.types & b.types:
            return True
        if a.values is not None and b.values is not None:
            return not {identity(v) for v in a.values} & {identity(v) for v in b.values}
        if a.values is not None or b.values is not None:
            values = a.values if a.values is not None else b.values
            types = b.types if a.values is not None else a.types
            return all(type_of(v) not in types for v in values or ())
        return all(
            clearly_apart(a, b, kind) or (kind == "object" and level < 3 and self._members_apart(a, b, level))
            for kind in a.types & b.types
        )

    def _members_apart(self, a: Facts, b: Facts, level: int) -> bool:
        for name in dict.fromkeys(a.required + b.required):
            first, second = (
                tuple(shape.named[name] for shape in facts.properties if name in shape.named) for facts in (a, b)
            )
            missing = not first and any(_forbids(shape, name) for shape in a.properties)
            missing = missing or (not second and any(_forbids(shape, name) for shape in b.properties))
            if missing:
                return True
            if not first or not second or any(place.pointer in self.reading for place in first + second):
                continue
            if all(self._disjoint(x, y, level + 1) for x in self.read(first) for y in self.read(second)):
                return True
        return False


def _true(place: Subschema) -> Subschema:
    return Subschema(schema=True, pointer=f"{place.pointer}/(true)")


def _absent(name: str) -> Properties:
    return Properties({name: Subschema(schema=False, pointer="#/(false)")})


def _forbids(shape: Properties, name: str) -> bool:
    return shape.closed and name not in shape.named and not shape.patterns
