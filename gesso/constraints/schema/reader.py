"""Read a JSON schema into facts: follow references, intersect `allOf`, list the alternatives of `anyOf` and `oneOf`."""

import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from gesso.constraints.limits import Limits
from gesso.constraints.schema.facts import Facts, Subschema, identity, intersect, type_of, with_allowed_values
from gesso.constraints.schema.keywords import members, own_facts, short
from gesso.constraints.schema.numbers import none_between
from gesso.errors import InputError

MAX_LEVELS = 64  # schemas inside schemas, references included
MAX_NEST = 128  # lists and objects inside each other
MAX_ALTERNATIVES = 1000  # at one place, after anyOf and allOf are multiplied out


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


class Reader:
    """Reads the subschemas of one schema, each of them once.

    `truncated` is set when a reading reached the limit of recursion, so that alternatives are missing.
    """

    def __init__(self, root: Any, limits: Limits) -> None:
        self.root, self.limits = root, limits
        self.truncated = False
        self.visits = 0
        self.known: dict[Any, tuple[list[Facts], bool]] = {}
        self.reading: set[str] = set()  # pointers of the subschemas being read, to detect endless references
        self.disjoint_unions: set[str] = set()  # pointers of oneOf whose members were all compared

    def read(self, places: tuple[Subschema, ...]) -> list[Facts]:
        """Return the alternatives that satisfy all these subschemas at once."""

        def read_all() -> list[Facts]:
            found = [Facts()]
            for place in places:
                found = self._both(found, self._place(place), place)
            return [facts for facts in map(with_allowed_values, found) if facts.possible]

        return self._once(tuple(place.key for place in places), read_all)

    def _once(self, key: Any, read: Callable[[], list[Facts]]) -> list[Facts]:
        if key not in self.known:
            before, self.truncated = self.truncated, False
            self.known[key] = read(), self.truncated
            self.truncated = before
        found, truncated = self.known[key]
        self.truncated = self.truncated or truncated
        return found

    def _both(self, some: list[Facts], others: list[Facts], place: Subschema) -> list[Facts]:
        if len(some) * len(others) > MAX_ALTERNATIVES:
            raise InputError(
                f"{place.pointer}: anyOf, oneOf and allOf combine to more than {MAX_ALTERNATIVES:,} alternatives; "
                "use fewer"
            )
        found = (b if a.unconstrained else intersect(a, b) for a in some for b in others)
        return [facts for facts in found if facts.possible]

    def _place(self, place: Subschema) -> list[Facts]:
        return self._once(place.key, lambda: self._read(place))

    def _read(self, place: Subschema) -> list[Facts]:
        if place.pointer in self.reading:
            raise InputError(
                f"{place.pointer} refers to itself for the same value, which has no end; "
                "refer to it from a property or an item instead"
            )
        self.visits += 1
        if self.visits > self.limits.regex_chars // 80:
            raise InputError(f"{place.pointer}: the schema has too many parts after its references are followed")
        if place.level > MAX_LEVELS:
            raise InputError(f"{place.pointer}: schemas nest deeper than {MAX_LEVELS} levels, references included")
        if isinstance(place.schema, bool):
            return [Facts(place.pointer)] if place.schema else []
        if not isinstance(place.schema, Mapping):
            raise InputError(f"{place.pointer} is {short(place.schema)}: a schema is an object, true or false")
        self.reading.add(place.pointer)
        found = [own_facts(place)]
        if "$ref" in place.schema:
            target = self._follow(place, place.schema["$ref"])
            found = self._both(found, self._place(target) if target else [], place)
        for member in members(place, "allOf"):
            found = self._both(found, self._place(member), place)
        if "anyOf" in place.schema:
            union = [facts for member in members(place, "anyOf") for facts in self._place(member)]
            found = self._both(found, union, place)
        if "oneOf" in place.schema:
            found = self._one_of(place, found)
        self.reading.discard(place.pointer)
        return found

    def _follow(self, place: Subschema, ref: Any) -> Subschema | None:
        """Return the target of a reference; None beyond the limit of recursion."""
        where = f"{place.pointer}/$ref"
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise InputError(
                f"{where} is {short(ref)}: only references within the schema, such as #/$defs/name, are supported"
            )
        target: Any = self.root
        for step in (unquote(part).replace("~1", "/").replace("~0", "~") for part in ref.split("/")[1:]):
            if isinstance(target, Mapping) and step in target:
                target = target[step]
            elif isinstance(target, list | tuple) and step.isdecimal() and int(step[:9]) < len(target):
                target = target[int(step[:9])]
            else:
                raise InputError(f"{where}: there is no {ref!r} in the schema")
        times = dict(place.entered)
        times[ref] = times.get(ref, 0) + 1
        if times[ref] > self.limits.depth:
            self.truncated = True
            return None
        return Subschema(target, ref, frozenset(times.items()), place.level + 1)

    # --- oneOf: the members must be disjoint ------------------------------------------------------------------------

    def _one_of(self, place: Subschema, found: list[Facts]) -> list[Facts]:
        before, self.truncated = self.truncated, False
        options = [
            [with_allowed_values(facts) for facts in self._both(found, self._place(member), place)]
            for member in members(place, "oneOf")
        ]
        for i, first in enumerate(options):
            for j, second in enumerate(options[:i]):
                if not all(self._disjoint(a, b) for a in first for b in second):
                    raise InputError(
                        f"{place.pointer}/oneOf: a value may match both members {j} and {i}, which oneOf forbids. Give "
                        "them different types, or a required property with different const values, or use anyOf."
                    )
        # At the limit of recursion some members are missing. They were compared at a level above.
        if not self.truncated:
            self.disjoint_unions.add(place.pointer)
        elif place.pointer not in self.disjoint_unions:
            raise InputError(
                f"{place.pointer}/oneOf: its members cannot be distinguished within limits.depth; raise the limit"
            )
        self.truncated = before or self.truncated
        return [facts for option in options for facts in option]

    def _disjoint(self, a: Facts, b: Facts, level: int = 0) -> bool:
        """Return whether no value satisfies both; False if that cannot be decided."""
        if not a.possible or not b.possible or not a.types & b.types:
            return True
        if a.values is not None and b.values is not None:
            return not {identity(v) for v in a.values} & {identity(v) for v in b.values}
        if a.values is not None or b.values is not None:
            values, types = (a.values, b.types) if a.values is not None else (b.values, a.types)
            return all(type_of(v) not in types for v in values or ())
        return all(self._type_disjoint(a, b, kind, level) for kind in a.types & b.types)

    def _type_disjoint(self, a: Facts, b: Facts, kind: str, level: int) -> bool:
        if kind in ("integer", "number"):
            return none_between(b.low, a.high) or none_between(a.low, b.high)
        if kind == "string":
            return _above(a.min_length, b.max_length) or _above(b.min_length, a.max_length)
        if kind == "array":
            return _above(a.min_items, b.max_items) or _above(b.min_items, a.max_items)
        if kind != "object" or level > 3:
            return False
        for name in dict.fromkeys(a.required + b.required):
            first, second = (tuple(p for shape in x.properties for p in shape.of(name)) for x in (a, b))
            before, self.truncated = self.truncated, False
            reading, self.reading = self.reading, set()
            ones, others = self.read(first), self.read(second)
            whole, self.truncated, self.reading = not self.truncated, before or self.truncated, reading
            if whole and all(self._disjoint(x, y, level + 1) for x in ones for y in others):
                return True
        return False


def _above(low: int, high: int | None) -> bool:
    return high is not None and low > high
