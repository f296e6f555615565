"""Random JSON schemas, and values that are valid under them."""

import random
from typing import Any

import jsonschema_rs
from hypothesis import strategies as st

PATTERNS = {
    r"^[A-Z]{2}-\d{3}$": ["AB-123", "ZZ-000"],
    r"^(?:red|green|blue)+$": ["red", "bluegreen"],
    r"^[^\"\\]{1,4}$": ["é", "ab\n"],
    r"^\w+\s\w+$": ["two words", "a\tb"],
    r"^.$": ["x", "✓", '"', "\\"],
    r"[0-9]": ["a1b", "7"],
    r"^\S*!$|^\?": ["hé!", "? yes"],
    r"^\u00e9[\x41-\x43\W]?$": ["é", "éB", "é-"],
}
FORMATS = {
    "date": ["2024-02-29", "1999-12-31"],
    "time": ["23:59:59Z", "00:00:00.25+05:30"],
    "date-time": ["2023-11-05T08:15:30Z"],
    "email": ["ada.lovelace@example.org"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "ipv4": ["192.168.0.1", "255.255.255.255"],
    "ipv6": ["::1", "2001:db8::ff00:42:8329", "1:2:3:4:5:6:7:8"],
    "uri": ["https://example.org:8080/a/b?c=d#e", "mailto:ada@example.org"],
    "hostname": ["localhost", "www.example.org"],
    "duration": ["P1Y2M3DT4H5M6S", "P3W", "PT10M"],
}
NAMES = ["id", "name", "größe", "名前", "a/b", 'say "hi"', "tab\t", "", "x.y*", "🙂"]
TEXTS = ["", "yes", "no", "naïve", 'quo"te', "back\\slash", "line\nbreak", "日本語", "🙂", "[a-z]*"]

_texts = st.sampled_from(TEXTS)
_values = st.one_of(st.none(), st.booleans(), st.integers(-999, 999), st.sampled_from([0.5, -2.25, 1e-7]), _texts)


@st.composite
def _strings(draw: st.DrawFn) -> dict[str, Any]:
    low = draw(st.integers(0, 3))
    limits = {"minLength": low, "maxLength": draw(st.integers(low, 5))}
    chosen = draw(st.sets(st.sampled_from(sorted(limits))))
    return {"type": "string"} | {name: limits[name] for name in sorted(chosen)}


@st.composite
def _numbers(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["integer", "number"]))
    bounds = st.one_of(st.integers(-3000, 3000), st.integers(-99, 99).map(lambda n: n / 8), st.just(0))
    low, high = sorted([draw(bounds), draw(bounds)])
    schema: dict[str, Any] = {"type": kind}
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = low
    if draw(st.booleans()):  # at least two apart, so that some value lies between exclusive bounds
        schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = high + 2
    return schema


_leaves = st.one_of(
    _strings(),
    _numbers(),
    st.sampled_from(sorted(PATTERNS)).map(lambda pattern: {"type": "string", "pattern": pattern}),
    st.sampled_from(sorted(FORMATS)).map(lambda name: {"type": "string", "format": name}),
    st.lists(_values, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    _values.map(lambda value: {"const": value}),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"]}, {"$ref": "#/$defs/point"}]),
)


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    if not names:
        return {"type": "object", "additionalProperties": draw(inner), "minProperties": draw(st.integers(0, 1))}
    schema: dict[str, Any] = {"type": "object", "properties": {name: draw(inner) for name in names}}
    schema["required"] = [name for name in names if draw(st.booleans())]
    return schema | ({"additionalProperties": False} if draw(st.booleans()) else {})


@st.composite
def _arrays(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    low = draw(st.integers(0, 2))
    kind = draw(st.sampled_from(["items", "prefix", "unique"]))
    if kind == "unique":
        values = draw(st.lists(_texts, min_size=2, max_size=6, unique=True))
        return {"type": "array", "items": {"enum": values}, "uniqueItems": True, "minItems": min(low, 1)}
    if kind == "prefix":
        first = draw(st.lists(inner, min_size=1, max_size=2))
        return {"type": "array", "prefixItems": first, "items": draw(inner), "minItems": low, "maxItems": 3}
    return {"type": "array", "items": draw(inner), "minItems": low} | ({"maxItems": 3} if draw(st.booleans()) else {})


@st.composite
def _tagged(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Draw a union whose members differ in one property; half of them use `allOf`."""
    tags = draw(st.lists(st.sampled_from(TEXTS), min_size=2, max_size=3, unique=True))
    members = []
    for tag in tags:
        head = {"type": "object", "properties": {"kind": {"const": tag}}, "required": ["kind"]}
        if draw(st.booleans()):
            members.append({"allOf": [head, {"properties": {"value": draw(inner)}, "required": ["value"]}]})
        else:
            members.append(head | {"properties": head["properties"] | {"value": draw(inner)}})
    return {"oneOf": members}


def _deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    unions = st.lists(inner, min_size=1, max_size=3).map(lambda members: {"anyOf": members})
    return st.one_of(_objects(inner), _arrays(inner), unions, _tagged(inner), st.just({"$ref": "#/$defs/tree"}))


DEFINITIONS = {
    "point": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
    "tree": {
        "type": "object",
        "properties": {"leaf": {"type": "boolean"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]}},
        "required": ["next"],
    },
}


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Draw nested objects, arrays, enums, bounds, formats, patterns, Unicode, lengths, anyOf, oneOf and $ref."""
    return st.recursive(_leaves, _deeper, max_leaves=6).map(lambda schema: {"$defs": DEFINITIONS, **schema})


def value_of(schema: dict[str, Any], rng: random.Random, depth: int = 0) -> Any:
    """Return a value that is valid under a schema of `schemas`."""
    match schema:
        case {"const": value}:
            return value
        case {"enum": values} | {"anyOf": values} | {"oneOf": values}:
            chosen = rng.choice(values)
            return chosen if "enum" in schema else value_of(chosen, rng, depth)
        case {"allOf": members}:
            return {name: value for member in members for name, value in value_of(member, rng, depth).items()}
        case {"$ref": ref}:
            if ref.endswith("tree") and depth > 1:
                return {"leaf": True, "next": None}
            return value_of(DEFINITIONS[ref.rpartition("/")[2]], rng, depth + 1)
        case {"pattern": pattern}:
            return rng.choice(PATTERNS[pattern])
        case {"format": name}:
            return rng.choice(FORMATS[name])
        case {"type": "array"}:
            return _list_of(schema, rng, depth)
        case {"properties": properties}:
            needed = schema.get("required", [])
            kept = [name for name in properties if name in needed or rng.random() < 0.5]
            return {name: value_of(properties[name], rng, depth) for name in kept}
        case {"type": "object"}:
            names = rng.sample(NAMES, rng.randint(schema["minProperties"], 2))
            return {name: value_of(schema["additionalProperties"], rng, depth) for name in names}
        case {"type": "integer" | "number" as kind}:
            return _number_of(schema, kind, rng)
        case {"type": "boolean"}:
            return rng.random() < 0.5
        case {"type": "string" | ["string", "null"]}:
            low = schema.get("minLength", 0)
            size = rng.randint(low, schema.get("maxLength", low + 5))
            return "".join(rng.choice('aé漢🙂"\\\n/ ') for _ in range(size))
    return None


def _list_of(schema: dict[str, Any], rng: random.Random, depth: int) -> list[Any]:
    low = schema.get("minItems", 0)
    if schema.get("uniqueItems"):
        values = schema["items"]["enum"]
        chosen = rng.sample(values, rng.randint(low, len(values)))
        return chosen if len(values) <= 4 else [value for value in values if value in chosen]
    size = rng.randint(low, schema.get("maxItems", low + 2))
    prefix = schema.get("prefixItems", [])
    return [value_of(prefix[i] if i < len(prefix) else schema["items"], rng, depth) for i in range(size)]


def _number_of(schema: dict[str, Any], kind: str, rng: random.Random) -> int | float:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    low = (-5000 if high is None else high - 100) if low is None else low
    high = low + 100 if high is None else high
    inside = (low + high) / 2  # bounds are at least two apart
    whole = int(inside) if low < int(inside) < high else int(inside) + (1 if inside > 0 else -1)
    options: list[int | float] = [whole, *(schema[name] for name in ("minimum", "maximum") if name in schema)]
    if kind == "integer":
        return rng.choice([n for n in options if n == int(n) and isinstance(n, int)])
    return rng.choice([*options, inside, low + (high - low) * 0.125])


_KEYWORDS: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(["integer", "number", "string", "object", "array", ["string", "integer"], "null"]),
    "enum": st.lists(_values, min_size=1, max_size=4),
    "const": _values,
    "minimum": st.integers(-9, 9),
    "exclusiveMaximum": st.sampled_from([-0.5, 3, 12]),
    "multipleOf": st.sampled_from([1, 3]),
    "minLength": st.integers(0, 3),
    "maxLength": st.integers(0, 5),
    "pattern": st.sampled_from(sorted(PATTERNS)),
    "format": st.sampled_from(["date", "ipv4"]),
    "minItems": st.integers(0, 3),
    "maxItems": st.integers(0, 3),
    "uniqueItems": st.booleans(),
    "required": st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True),
    "minProperties": st.integers(0, 2),
    "maxProperties": st.integers(0, 3),
}


def _mixed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    applied = {"allOf": some, "anyOf": some, "oneOf": some, "items": inner, "prefixItems": some}
    applied |= {"properties": st.dictionaries(st.sampled_from(["a", "b", "c"]), inner), "additionalProperties": inner}
    return st.one_of(st.just({"$ref": "#"}), _chosen({**_KEYWORDS, **applied}, 4))


def _chosen(keywords: dict[str, st.SearchStrategy[Any]], most: int) -> st.SearchStrategy[Any]:
    names = st.lists(st.sampled_from(sorted(keywords)), max_size=most, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: keywords[name] for name in chosen}))


def mixtures() -> st.SearchStrategy[Any]:
    """Draw random keywords; many combinations are pointless, contradictory or unsupported."""
    return st.recursive(st.one_of(st.booleans(), _chosen(_KEYWORDS, 3)), _mixed, max_leaves=8)


def assert_valid(value: Any, schema: Any) -> None:
    jsonschema_rs.validate(schema, value)
