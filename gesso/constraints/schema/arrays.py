"""Terms of arrays."""

from typing import Any

from gesso.constraints.schema.compiler import Compiler
from gesso.constraints.schema.facts import Contains, Facts, Subschema, identity, type_of
from gesso.constraints.schema.orders import MAX_SET, in_any_order
from gesso.constraints.term import EMPTY, NOTHING, Term
from gesso.constraints.terms import alt, optional, repeat, seq


def array_term(compiler: Compiler, facts: Facts) -> Term:
    """Return the arrays that satisfy the facts."""
    low, high = facts.min_items, facts.max_items
    excluded = [value for value in facts.excluded if isinstance(value, list | tuple)]
    if excluded:
        low = max(low, 1)
        if any(excluded):
            compiler.check(f"{facts.pointer}/enum")
    if high is not None and low > high:
        return NOTHING
    if facts.unique and (high is None or high > 1):
        distinct = _different(compiler, facts, low, high)
        if distinct is not None:
            return distinct
    if facts.contains:
        containing = _containing(compiler, facts, low, high)
        if containing is not None:
            return containing
    return compiler.writer.within("[]", _items(compiler, facts, low, high))


def _items(compiler: Compiler, facts: Facts, low: int, high: int | None) -> Term:
    count = max((len(shape.prefix) for shape in facts.items), default=0)
    prefix = [compiler.value(_places(facts, i)) for i in range(count if high is None else min(count, high))]
    # After a prefix, write more items only if the schema describes them or requires them.
    rest = any(shape.rest is not None for shape in facts.items)
    more = not prefix or rest or low > count or compiler.options.open
    item = compiler.value(_places(facts, count)) if more else NOTHING
    comma = compiler.writer.comma
    if not prefix:
        return _list(comma, item, low, high)
    most = None if high is None else high - len(prefix)
    tail = repeat(seq(comma, item), max(low - len(prefix), 0), most)
    for i, first in reversed(list(enumerate(prefix))):
        tail = seq(comma if i else EMPTY, first, tail)
        if i >= low:
            tail = optional(tail)
    return tail


def _places(facts: Facts, index: int) -> tuple[Subschema, ...]:
    return tuple(place for shape in facts.items for place in shape.at(index))


def _list(comma: Term, item: Term, low: int, high: int | None) -> Term:
    """Return `low` to `high` items with commas between them."""
    if high == 0:
        return EMPTY
    items = seq(item, repeat(seq(comma, item), max(low - 1, 0), None if high is None else high - 1))
    return items if low else optional(items)


def _different(compiler: Compiler, facts: Facts, low: int, high: int | None) -> Term | None:
    """Return arrays of different values of an enum; None if that is left to the check of the answer."""
    pointer = f"{facts.pointer}/uniqueItems"
    places = _places(facts, 0)
    choices = compiler.reader.read(places) if not any(shape.prefix for shape in facts.items) else []
    values: dict[Any, Any] = {}
    for choice in choices:
        listed = choice.values
        if listed is None and choice.types <= {"null", "boolean"}:
            listed = tuple(v for v in (None, True, False) if type_of(v) in choice.types)
        if listed is None:
            compiler.check(pointer)
            return None
        values |= {identity(v): v for v in listed}
    if not choices or facts.contains or len(values) > MAX_SET:
        compiler.check(pointer)
        if not choices or facts.contains:
            return None
        high = len(values) if high is None else min(high, len(values))
        if low > high:
            return NOTHING
        return compiler.writer.within("[]", _list(compiler.writer.comma, compiler.value(places), low, high))
    parts = [compiler.writer.value(value) for value in values.values()]
    return compiler.writer.within("[]", in_any_order(parts, 0, low, high, compiler.writer.comma, NOTHING))


def _containing(compiler: Compiler, facts: Facts, low: int, high: int | None) -> Term | None:
    """Return arrays with items that satisfy a further schema; None if that is left to the check of the answer.

    With N for any item and M for one that matches, they are N* (M N*){least,most}.
    """
    wanted: Contains = facts.contains[0]
    if len(facts.contains) > 1 or facts.unique or any(shape.prefix for shape in facts.items):
        compiler.check(f"{facts.pointer}/contains")
        return None
    least, most = wanted.low, wanted.high
    if least == 0 and most is None:
        return None
    if (low > least or high is not None) and most is None and least == 1 and (high or low) <= 50:
        return _one_of_few(compiler, facts, low, high)
    if low > least or high is not None:
        compiler.check(f"{facts.pointer}/contains")
        return None
    places, comma = _places(facts, 0), compiler.writer.comma
    match = compiler.value((*places, wanted.place))
    # Without a highest count, any item may stand between the matches.
    item = compiler.value(places if most is None else (*places, wanted.place.negated()))
    others = repeat(seq(comma, item), 0, None)
    further = seq(comma, match, others)

    def matches(done: int) -> Term:
        return repeat(further, max(least - done, 0), None if most is None else most - done)

    alternatives = [seq(item, others, matches(0))]
    if most != 0:
        alternatives.append(seq(match, others, matches(1)))
    if least == 0:
        alternatives.append(EMPTY)
    return compiler.writer.within("[]", alt(alternatives))


def _one_of_few(compiler: Compiler, facts: Facts, low: int, high: int | None) -> Term:
    """Return `low` to `high` items, one of which satisfies a further schema."""
    places, comma = _places(facts, 0), compiler.writer.comma
    item, match = compiler.value(places), compiler.value((*places, facts.contains[0].place))
    other, needed = seq(comma, item), seq(comma, match)
    last = (low if high is None else high) - 1  # the last place where the match may be the first item that is counted

    def rest(done: int) -> Term:
        return repeat(other, max(low - done, 0), None if high is None else high - done)

    alternatives = [seq(match, rest(1))]
    for i in range(1, last + 1):
        before = repeat(other, i - 1, None if high is None and i == last else i - 1)
        alternatives.append(seq(item, before, needed, rest(i + 1)))
    return compiler.writer.within("[]", alt(alternatives))
