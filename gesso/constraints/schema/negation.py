"""The alternatives of values that do not satisfy a subschema."""

from dataclasses import replace
from typing import Protocol

from gesso.constraints.schema.facts import NUMBERS, TYPES, Contains, Facts, Items, Properties, Subschema
from gesso.constraints.schema.keywords import APPLICATORS, REFERENCES, members
from gesso.constraints.schema.numbers import Bound
from gesso.constraints.schema.references import References

_READ = frozenset({*REFERENCES, "allOf", "anyOf", "not"})


class FactsReader(Protocol):
    """The part of `SchemaReader` that a negation uses."""

    @property
    def references(self) -> References: ...
    def keyword_facts(self, place: Subschema) -> Facts: ...
    def place(self, place: Subschema) -> list[Facts]: ...
    def both(self, some: list[Facts], others: list[Facts], pointer: str) -> list[Facts]: ...


def negated(reader: FactsReader, place: Subschema, level: int = 0) -> tuple[list[Facts], bool]:
    """Return alternatives none of which satisfies a subschema, and whether they are all there are."""
    place = reader.references.entered(place)
    schema = place.schema
    if isinstance(schema, bool):
        return ([], True) if schema else ([Facts(place.pointer)], True)
    if level > 8:
        return [], False
    if reader.references.draft <= 7 and "$ref" in schema:
        return negated(reader, reader.references.targets(place, "$ref")[0], level + 1)
    alternatives, exact = _of_keywords(reader.keyword_facts(place))
    exact = exact and not (schema.keys() & APPLICATORS - _READ)
    inner = members(place, "allOf")
    for keyword in REFERENCES:
        targets = reader.references.targets(place, keyword) if keyword in schema else []
        exact = exact and len(targets) <= 1  # which of several targets applies depends on the path to the reference
        inner += targets if len(targets) == 1 else []
    for member in inner:
        others, complete = negated(reader, member, level + 1)
        alternatives = alternatives + others
        exact = exact and complete
    if "anyOf" in schema:
        none_of = [Facts(place.pointer)]
        for member in members(place, "anyOf"):
            others, complete = negated(reader, member, level + 1)
            none_of = reader.both(none_of, others, place.pointer)
            exact = exact and complete
        alternatives += none_of
    if "not" in schema:
        alternatives += reader.place(place.child(schema["not"], "not"))
    return alternatives, exact


def _of_keywords(facts: Facts) -> tuple[list[Facts], bool]:
    """Return alternatives in which at least one of the facts does not hold, and whether they are all there are."""
    empty = Facts(facts.pointer)
    strings, arrays, objects = (
        replace(empty, types=frozenset({kind}), about=frozenset({kind})) for kind in ("string", "array", "object")
    )
    numbers = replace(empty, types=NUMBERS, about=NUMBERS)
    alternatives: list[Facts] = []
    if facts.types != TYPES:
        alternatives.append(replace(empty, types=TYPES - facts.types))
    if facts.values is not None:
        alternatives.append(replace(empty, excluded=facts.values))
    if facts.low is not None:
        alternatives.append(replace(numbers, high=_beyond(facts.low)))
    if facts.high is not None:
        alternatives.append(replace(numbers, low=_beyond(facts.high)))
    alternatives += [replace(strings, other_patterns=(pattern,)) for pattern in facts.patterns]
    for like, low, high in (
        (strings, "min_length", "max_length"),
        (arrays, "min_items", "max_items"),
        (objects, "min_properties", "max_properties"),
    ):
        if getattr(facts, low) > 0:
            alternatives.append(replace(like, **{high: getattr(facts, low) - 1}))
        if getattr(facts, high) is not None:
            alternatives.append(replace(like, **{low: getattr(facts, high) + 1}))
    absent = Subschema(schema=False, pointer="#/(false)")
    alternatives += [replace(objects, properties=(Properties({name: absent}),)) for name in facts.required]
    exact = facts.step is None and not facts.formats and not facts.unique and not facts.names
    for shape in facts.properties:
        exact = exact and not shape.patterns and (shape.others is None or shape.others.schema is True)
        for name, inner in shape.named.items():
            if inner.schema is not True and inner.schema != {}:
                wrong = Properties({name: inner.negated()})
                alternatives.append(replace(objects, required=(name,), properties=(wrong,)))
    for items in facts.items:
        exact = exact and not items.prefix
        if items.rest is not None and not items.prefix:
            unlike = Contains(place=items.rest.negated(), low=1, high=None)
            alternatives.append(replace(arrays, contains=(unlike,)))
    for contains in facts.contains:
        exact = exact and contains.low == 1 and contains.high is None
        if contains.low == 1:
            none_alike = Items(prefix=(), rest=contains.place.negated())
            alternatives.append(replace(arrays, items=(none_alike,)))
    return alternatives, exact


def _beyond(bound: Bound) -> Bound:
    return replace(bound, strict=not bound.strict)
