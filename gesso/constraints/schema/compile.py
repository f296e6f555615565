"""Compile a JSON schema to a term. Every text of the term is a JSON document valid under the schema.

Not every text of a valid document belongs to it. By default, members come in the order of `properties`, an object that
names properties has no others, and the only whitespace is one optional space after `,` and `:`. See `SchemaOptions`.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gesso.constraints.budget import at_most
from gesso.constraints.limits import Limits
from gesso.constraints.schema.arrays import array_term
from gesso.constraints.schema.dialects import JSON, Dialect, ValueWriter
from gesso.constraints.schema.facts import NUMBERS, TYPES, Facts, Subschema
from gesso.constraints.schema.multiples import multiples
from gesso.constraints.schema.numbers import fractional, integers, numbers, spelled
from gesso.constraints.schema.objects import object_term
from gesso.constraints.schema.openapi import standard_schema
from gesso.constraints.schema.options import SchemaOptions
from gesso.constraints.schema.reader import SchemaReader, check_json
from gesso.constraints.schema.strings import string_content
from gesso.constraints.settle import settle
from gesso.constraints.term import FAR, NOTHING, Term
from gesso.constraints.terms import NamedTerm, alt, both, literal, minus
from gesso.errors import InputError


@dataclass(frozen=True)
class CompiledConstraint:
    """The texts that a constraint allows."""

    term: Term
    warnings: tuple[str, ...] = ()  # keywords and formats that were ignored, each with the first place
    checked: tuple[str, ...] = ()  # JSON pointers of assertions for which the finished answer must be checked


def schema_term(
    schema: Mapping[str, Any] | bool,
    *,
    limits: Limits = Limits(),  # noqa: B008 (immutable)
    dialect: Dialect = JSON,
    options: SchemaOptions = SchemaOptions(),  # noqa: B008 (immutable)
) -> CompiledConstraint:
    """Return the texts of values that satisfy a schema."""
    check_json(schema, limits)
    with at_most(limits.terms, limits.seconds):
        compiler = _SchemaCompiler(SchemaReader(standard_schema(schema)), dialect, options)
        term = compiler.whole()
        if term is NOTHING:
            raise InputError("the schema contradicts itself: no value satisfies it; relax one of its conditions")
        if term.least >= FAR:
            raise InputError(
                "the schema contradicts itself, or it refers to itself and has no end: no value satisfies it. Relax "
                "one of its conditions, make the recursive part optional, or allow null or an empty list instead"
            )
    reader = compiler.reader
    warnings = tuple(f"{text} ({pointer})" for text, pointer in reader.warnings.items())
    return CompiledConstraint(term=term, warnings=warnings, checked=tuple(reader.checked))


class _SchemaCompiler:
    """Writes facts as terms. Each array and object is a rule, so that schemas may refer to themselves."""

    def __init__(self, reader: SchemaReader, dialect: Dialect, options: SchemaOptions) -> None:
        self.reader = reader
        self.options = options
        self.writer = ValueWriter.of(dialect, whitespace=options.whitespace, any_order=options.any_order)
        self.terms: dict[tuple[str, ...], Term] = {}  # by the pointers of the subschemas
        self.parts: dict[Term, NamedTerm] = {}  # by body
        self.new_parts: list[NamedTerm] = []  # of the rule that is being compiled
        self.waiting: deque[tuple[NamedTerm, list[Facts]]] = deque()

    def whole(self) -> Term:
        root = self.value((self.reader.references.root,))
        rules: list[NamedTerm] = []  # each before the rules it contains
        while self.waiting:  # a queue, because the rules of a schema may nest to any depth
            rule, alternatives = self.waiting.popleft()
            self.new_parts.clear()
            rule.body = alt(self._value(facts) for facts in alternatives)
            rules += [rule, *reversed(self.new_parts)]
        settle(reversed(rules))
        return root

    def check(self, pointer: str) -> None:
        self.reader.check(pointer)

    def value(self, places: tuple[Subschema, ...]) -> Term:
        """Return the values that satisfy all these subschemas."""
        places = tuple({place.pointer: place for place in places}.values())
        key = tuple(place.pointer for place in places)
        if key not in self.terms:
            alternatives = self.reader.read(places)
            if any(facts.unconstrained for facts in alternatives) and key:
                self.terms[key] = self.value(())
            elif any(facts.values is None and facts.types & {"array", "object"} for facts in alternatives):
                rule = NamedTerm(key[0] if key else "any value")
                self.terms[key] = rule
                self.waiting.append((rule, alternatives))
            else:
                self.terms[key] = alt(self._value(facts) for facts in alternatives)
        return self.terms[key]

    def rule(self, body: Term) -> Term:
        """Give a term a name, so that it is one item of a sequence or an alternative."""
        if body not in self.parts:
            rule = NamedTerm("part")
            rule.body = body
            self.parts[body] = rule
            self.new_parts.append(rule)
        return self.parts[body]

    def _value(self, facts: Facts) -> Term:
        if facts.values is not None:
            return alt(map(self.writer.value, facts.values))
        # {"properties": ...} without a type also allows a number, but its author means an object.
        narrow = facts.types == TYPES and facts.about and not self.options.open
        types = facts.about if narrow else facts.types
        return alt(self._typed(kind, types, facts) for kind in sorted(types))

    def _typed(self, kind: str, types: frozenset[str], facts: Facts) -> Term:
        match kind:
            case "null":
                return NOTHING if None in facts.excluded else literal("null")
            case "boolean":
                excluded = [value for value in facts.excluded if isinstance(value, bool)]
                return alt(literal(str(value).lower()) for value in (True, False) if value not in excluded)
            case "integer":  # "number" matches the integers too
                return NOTHING if "number" in types else self._number(facts, frozenset({kind}))
            case "number":
                return self._number(facts, types & NUMBERS)
            case "string":
                return self.writer.dialect.quoted(string_content(facts, self.writer.dialect, self.check))
            case "array":
                return array_term(self, facts)
        return object_term(self, facts)

    def _number(self, facts: Facts, types: frozenset[str]) -> Term:
        excluded = [v for v in facts.excluded if isinstance(v, int | float) and not isinstance(v, bool)]
        whole = types == {"integer"}
        if facts.step is not None:
            term = self._multiples(facts, facts.step, whole)
        elif whole:
            term = integers(facts.low, facts.high)
        elif "integer" in types:
            term = numbers(facts.low, facts.high)
        else:
            term = fractional(facts.low, facts.high)
        if excluded:
            term = minus(term, alt(spelled(value) for value in excluded))
        return term

    def _multiples(self, facts: Facts, step: Fraction, whole: bool) -> Term:
        if whole:
            step = Fraction(step.numerator)  # an integer is a multiple of 3/2 if it is one of 3
        listed = multiples(step)
        within = integers(facts.low, facts.high) if step.denominator == 1 else numbers(facts.low, facts.high)
        if listed is None:
            self.check(f"{facts.pointer}/multipleOf")
            return within
        if step.denominator & (step.denominator - 1):  # a binary fraction divides exactly in floating point
            self.check(f"{facts.pointer}/multipleOf")
        if facts.low is None and facts.high is None:
            return listed
        multiples_within = both([listed, within])
        return NOTHING if multiples_within.least >= FAR else multiples_within
