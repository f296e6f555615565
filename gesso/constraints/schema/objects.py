"""Terms of objects. Members come in the order of `properties`, then all others."""

from itertools import combinations

from gesso.constraints.schema.compiler import Compiler
from gesso.constraints.schema.facts import Facts, Properties, Subschema
from gesso.constraints.schema.orders import fits_any_order, in_any_order
from gesso.constraints.schema.strings import matches, pattern_content, string_content
from gesso.constraints.term import EMPTY, FAR, NOTHING, Term
from gesso.constraints.terms import alt, both, complement, repeat, seq
from gesso.errors import InputError

MAX_MEMBERS = 5_000
MAX_COUNTED = 2_000  # pairs of a member and a count
MAX_OVERLAPS = 3  # patterns of names whose combinations are written
RUN = 32  # members of a rule


def object_term(compiler: Compiler, facts: Facts) -> Term:
    """Return the objects that satisfy the facts."""
    return _Object(compiler, facts).term()


class _Object:
    def __init__(self, compiler: Compiler, facts: Facts) -> None:
        self.compiler = compiler
        self.facts = facts
        self.writer = compiler.writer
        self.dialect = compiler.writer.dialect
        self.low = facts.min_properties
        self.high = facts.max_properties
        excluded = [value for value in facts.excluded if isinstance(value, dict)]
        if excluded:
            self.low = max(self.low, 1)
            if any(excluded):
                compiler.check(f"{facts.pointer}/enum")
        self.patterns = {pattern: self._pattern(pattern) for shape in facts.properties for pattern, _ in shape.patterns}
        self.names = self._names()

    def _pattern(self, pattern: str, *, every: bool = True) -> Term:
        """Return the names that match a pattern. A pattern that is not supported is left to the check of the answer."""
        try:
            return pattern_content(pattern, self.dialect, self.facts.pointer, every=every)
        except InputError:
            self.compiler.check(f"{self.facts.pointer}/patternProperties")
            return NOTHING

    def _names(self) -> Term | None:
        """Return the names that `propertyNames` allows; None for all."""
        if not self.facts.names:
            return None
        text = Subschema({"type": "string"}, "#/(string)")
        alternatives = self.compiler.reader.read((text, *self.facts.names))
        return alt(string_content(facts, self.dialect, self.compiler.check) for facts in alternatives)

    def term(self) -> Term:
        facts = self.facts
        names = dict.fromkeys([*(name for shape in facts.properties for name in shape.named), *facts.required])
        if len(names) > MAX_MEMBERS:
            raise InputError(f"{facts.pointer}: an object may have at most {MAX_MEMBERS:,} properties; use fewer")
        members: dict[str, Term] = {}
        for name in names:
            member: Term = NOTHING
            if self.names is None or matches(self.names, self.dialect, name):
                member = self.writer.member(name, self.compiler.value(self._places(name)))
            if member is not NOTHING:
                members[name] = self.compiler.rule(member)  # it is written in several places
            elif name in facts.required:
                return NOTHING
        free = self._free(names)
        return self.writer.within("{}", self._members(members, free))

    def _places(self, name: str) -> tuple[Subschema, ...]:
        """Return the subschemas of a member."""
        places: list[Subschema] = []
        for shape in self.facts.properties:
            described = [shape.named[name]] if name in shape.named else []
            for pattern, place in shape.patterns:
                if matches(self.patterns[pattern], self.dialect, name):
                    described.append(place)
            places += described or _others(shape)
        return tuple(places)

    def _free(self, names: dict[str, None]) -> Term:
        """Return any further member."""
        shapes = self.facts.properties
        closed = any(shape.closed and not shape.patterns for shape in shapes)
        declared = any(shape.named for shape in shapes) and self.low <= len(names)
        if closed or (declared and not self.compiler.options.open and not any(shape.open for shape in shapes)):
            return NOTHING
        text = [self.dialect.free_content]
        if names:
            text.append(complement(alt(self.dialect.content(name) for name in names)))
        if self.names is not None:
            text.append(self.names)
        most = len(self.patterns) if len(self.patterns) <= MAX_OVERLAPS else 1
        alternatives: list[Term] = []
        for size in range(most + 1):
            for chosen in combinations(self.patterns, size):
                matched = [self.patterns[pattern] for pattern in chosen]
                unmatched = [self._pattern(pattern, every=False) for pattern in self.patterns if pattern not in chosen]
                key = both([*text, *matched, *map(complement, unmatched)])
                value = self.compiler.value(self._pattern_places(set(chosen)))
                try:
                    if value is not NOTHING and key.least < FAR:
                        alternatives.append(seq(self.dialect.quoted(key), self.writer.colon, value))
                except InputError:  # patterns too large to compare: such names are not written
                    return alt(alternatives)
        return alt(alternatives)

    def _pattern_places(self, chosen: set[str]) -> tuple[Subschema, ...]:
        """Return the subschemas of a member whose name matches only these patterns."""
        places: list[Subschema] = []
        for shape in self.facts.properties:
            described = [place for pattern, place in shape.patterns if pattern in chosen]
            places += described or _others(shape)
        return tuple(places)

    def _members(self, members: dict[str, Term], free: Term) -> Term:
        low, high = self.low, self.high
        names = list(members)
        required = {name for name in names if name in self.facts.required}
        if low > 1 and free is not NOTHING:  # a name could be repeated
            self.compiler.check(f"{self.facts.pointer}/minProperties")
        if (high is not None and high < len(required)) or (free is NOTHING and low > len(names)):
            return NOTHING
        limited = low > max(len(required), 1) or (high is not None and (free is not NOTHING or high < len(names)))
        counted = limited and free is not NOTHING
        if self.compiler.options.any_order and names and fits_any_order(len(names), low, high, counted=counted):
            return in_any_order(
                list(members.values()),
                required=sum(1 << i for i, name in enumerate(names) if name in required),
                low=low if limited else min(low, 1),
                high=high,
                comma=self.writer.comma,
                free=free,
            )
        if self.compiler.options.any_order and len(names) > 1:
            self.compiler.reader.warn("the option any_order was ignored for an object of many members", self.place)
        if limited and (len(names) + 1) * ((low if high is None else high) + 1) > MAX_COUNTED and names:
            self.compiler.check(f"{self.facts.pointer}/{'minProperties' if low else 'maxProperties'}")
            limited = False
            low = min(low, 1)
        if limited:
            return self._counted(members, required, free)
        return self._in_order(members, required, free, low)

    @property
    def place(self) -> Subschema:
        return Subschema(schema=True, pointer=self.facts.pointer)

    def _in_order(self, members: dict[str, Term], required: set[str], free: Term, low: int) -> Term:
        comma = self.writer.comma
        rest = repeat(seq(comma, free), 0, None)  # after some member
        # Before the first one. Alternatives are joined once per run: they share beginnings, which takes time.
        start = [seq(free, rest), EMPTY if not low or required else NOTHING]
        for i, (name, member) in reversed(list(enumerate(members.items()))):
            start = [seq(member, rest), *([] if name in required else start)]
            if i:
                rest = seq(repeat(seq(comma, member), int(name in required), 1), rest)
            if i and i % RUN == 0 and len(members) > 2 * RUN:
                start, rest = [self.compiler.rule(alt(start))], self.compiler.rule(rest)
        return alt(start)

    def _counted(self, members: dict[str, Term], required: set[str], free: Term) -> Term:
        """Return the members in order, between `low` and `high` of them. Terms are built from the last member on."""
        low, high = self.low, self.high
        comma = self.writer.comma
        most = low if high is None else high
        counts = range(1, most + 1)
        # The text after `count` members, by count. Without `high`, counts beyond `low` make no difference.
        rest = {
            count: repeat(seq(comma, free), max(low - count, 0), None if high is None else high - count)
            for count in counts
        }
        start = alt([seq(free, rest.get(1, NOTHING)), EMPTY if low == 0 else NOTHING])
        for name, member in reversed(members.items()):
            first = seq(member, rest.get(1, NOTHING))
            start = first if name in required else alt([first, start])
            further: dict[int, Term] = {}
            for count in counts:
                next_count = count + 1 if high is not None else min(count + 1, most)
                further[count] = seq(comma, member, rest.get(next_count, NOTHING))
            rest = further if name in required else {count: alt([further[count], rest[count]]) for count in counts}
        return start


def _others(shape: Properties) -> list[Subschema]:
    """Return the subschema of members that no name or pattern describes, in a list."""
    return [] if shape.others is None else [shape.others]
