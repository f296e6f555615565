"""The alternatives of values that do not satisfy a subschema."""

from dataclasses import replace
from typing import Protocol

from gesso.constraints.schema.facts import NUMBERS, TYPES, Contains, Facts, Items, Properties, Subschema
from gesso.constraints.schema.keywords import APPLICATORS, REFERENCES, members
from gesso.constraints.schema.numbers import Bound
from gesso.constraints.schema.references import References

_READ = frozenset({*REFERENCES, "allOf", "anyOf", "not"})


class Read(Protocol):
    """What a negation needs of a reader."""

    @property
    def references(self) -> References: ...
    def own(self, place: Subschema) -> Facts: ...
    def place(self, place: Subschema) -> list[Facts]: ...
    def both(self, ones: list[Facts], others: list[Facts], pointer: str) -> list[Facts]: ...


def negated(reader: Read, place: Subschema, level: int = 0) -> tuple[list[Facts], bool]:
    """Return alternatives none of which satisfies a subschema, and whether they are all there are."""
    place = reader.references.entered(place)
    schema = place.schema
    if isinstance(schema, bool):
        return ([], True) if schema else ([Facts(place.pointer)], True)
    if level > 8:
        return [], False
    if reader.references.draft <= 7 and "$ref" in schema:
        return negated(reader, reader.references.targets(place, "$ref")[0], level + 1)
    found, exact = _own(reader.own(place))
    exact = exact and not (schema.keys() & APPLICATORS - _READ)
    inner = members(place, "allOf")
    for keyword in REFERENCES:
        targets = reader.references.targets(place, keyword) if keyword in schema else []
        exact = exact and len(targets) <= 1  # which of several it is depends on the way to it
        inner += targets if len(targets) == 1 else []
    for member in inner:
        others, complete = negated(reader, member, level + 1)
        found, exact = found + others, exact and complete
    if "anyOf" in schema:
        none_of = [Facts(place.pointer)]
        for member in members(place, "anyOf"):
            others, complete = negated(reader, member, level + 1)
            none_of, exact = reader.both(none_of, others, place.pointer), exact and complete
        found += none_of
    if "not" in schema:
        found += reader.place(place.child(schema["not"], "not"))
    return found, exact


def _own(facts: Facts) -> tuple[list[Facts], bool]:
    """Negate the facts of the keywords of one subschema: at least one of them does not hold."""
    empty = Facts(facts.pointer)
    strings, arrays, objects = (
        replace(empty, types=frozenset({kind}), about=frozenset({kind})) for kind in ("string", "array", "object")
    )
    numbers = replace(empty, types=NUMBERS, about=NUMBERS)
    found: list[Facts] = []
    if facts.types != TYPES:
        found.append(replace(empty, types=TYPES - facts.types))
    if facts.values is not None:
        found.append(replace(empty, excluded=facts.values))
    if facts.low is not None:
        found.append(replace(numbers, high=_beyond(facts.low)))
    if facts.high is not None:
        found.append(replace(numbers, low=_beyond(facts.high)))
    found += [replace(strings, other_patterns=(pattern,)) for pattern in facts.patterns]
    for like, low, high in (
        (strings, "min_length", "max_length"),
        (arrays, "min_items", "max_items"),
        (objects, "min_properties", "max_properties"),
    ):
        if getattr(facts, low) > 0:
            found.append(replace(like, **{high: getattr(facts, low) - 1}))
        if getattr(facts, high) is not None:
            found.append(replace(like, **{low: getattr(facts, high) + 1}))
    absent = Subschema(False, "#/(false)")
    found += [replace(objects, properties=(Properties({name: absent}),)) for name in facts.required]
    exact = facts.step is None and not facts.formats and not facts.unique and not facts.names
    for shape in facts.properties:
        exact = exact and not shape.patterns and (shape.others is None or shape.others.schema is True)
        for name, inner in shape.named.items():
            if inner.schema is not True and inner.schema != {}:
                wrong = Properties({name: inner.negated()})
                found.append(replace(objects, required=(name,), properties=(wrong,)))
    for items in facts.items:
        exact = exact and not items.prefix
        if items.rest is not None and not items.prefix:
            found.append(replace(arrays, contains=(Contains(items.rest.negated(), 1, None),)))
    for contains in facts.contains:
        exact = exact and contains.low == 1 and contains.high is None
        if contains.low == 1:
            found.append(replace(arrays, items=(Items((), contains.place.negated()),)))
    return found, exact


def _beyond(bound: Bound) -> Bound:
    return replace(bound, strict=not bound.strict)
