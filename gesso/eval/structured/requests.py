"""Generate requests for the structured task, with the schema or tools that define their answers."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gesso.chat.calls import ToolCall, format_call
from gesso.chat.messages import with_schema
from gesso.eval.structured.domains import (
    ATTRIBUTES,
    DOMAINS,
    FRAMES,
    SWITCHES,
    THINGS,
    WRAPPERS,
    Domain,
    Field,
    Wordings,
    wordings,
)
from gesso.eval.structured.words import STRINGS, Make, made_up
from gesso.eval.task import Item, split_of

CALLS = 0.45  # share of items with tools
RECORDS = 0.1  # share of items about a thing of any kind
LONGEST = 800  # characters of tools as JSON: prompt and answer stay below 384 tokens of a small vocabulary
GENERIC = 0.35  # share of values that are introduced by a field's name and not by a wording of its own


@dataclass(frozen=True, kw_only=True)
class Language:
    """How requests are worded: the generators of string values by kind, and the wordings that suit any field."""

    strings: Mapping[str, Make]
    frames: Wordings
    switches: Wordings  # of a bool
    turn: Callable[[str, random.Random], str]  # returns a clause as it is said


def _unchanged(clause: str, rng: random.Random) -> str:
    return clause


PLAIN = Language(strings=STRINGS, frames=FRAMES, switches=SWITCHES, turn=_unchanged)


@dataclass(frozen=True)
class Draw:
    """A request, a schema, and the values of the request in the form of that schema."""

    domain: Domain
    request: str
    schema: dict[str, Any]
    value: dict[str, Any]


def make_item(
    name: str,
    split: str,
    rng: random.Random,
    *,
    schema_in_prompt: bool = True,
    language: Language = PLAIN,
) -> Item:
    """Return a request to answer with JSON, or to answer with a call of one of several tools."""
    calls = rng.random() < CALLS
    drawn = draw(split, rng, range(1, 5) if calls else range(2, 6), language)
    meta: dict[str, Any] = {"value": drawn.value}
    if not calls:
        prompt = [message("user", drawn.request)]
        meta["schema"] = drawn.schema
        return Item(
            name=name,
            prompt=tuple(with_schema(prompt, drawn.schema) if schema_in_prompt else prompt),
            expected=compact(drawn.value),
            meta=meta,
            constraint={"json_schema": drawn.schema},
        )
    right = make_tool(drawn, split, rng)
    tools = {drawn.domain.name: right}
    for _ in range(rng.choice((0, 1, 1, 2))):
        other = draw(split, rng, range(1, 3))
        more = {other.domain.name: make_tool(other, split, rng), **tools}
        tools = more if len(compact(list(more.values()))) <= LONGEST else tools
    meta["tools"] = tuple(rng.sample(list(tools.values()), len(tools)))
    meta["call"] = right["function"]["name"]
    expected = format_call(ToolCall(meta["call"], drawn.value))
    return Item(
        name=name,
        prompt=(message("user", drawn.request),),
        expected=expected,
        meta=meta,
        constraint={"tool_choice": "required"},
    )


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def make_tool(drawn: Draw, split: str, rng: random.Random) -> dict[str, Any]:
    description = rng.choice(drawn.domain.asks[split]).capitalize() + "."
    function = {"name": rng.choice(drawn.domain.tools), "description": description, "parameters": drawn.schema}
    return {"type": "function", "function": function}


def draw(split: str, rng: random.Random, sizes: range, language: Language = PLAIN) -> Draw:
    while True:
        domain = _record(split, rng) if rng.random() < RECORDS else rng.choice(DOMAINS)
        stated = rng.sample(domain.fields, min(rng.choice(sizes), len(domain.fields)))  # in the request
        omits_one = len(stated) > 2 and rng.random() < 0.3
        required = rng.sample(stated, len(stated) - omits_one)  # by the schema
        keys = {field: rng.choice(field.keys) for field in required}
        if split_of(" ".join(sorted(keys.values()))) == split:
            break
    values = {field: _value(field.kind, split, rng, language.strings) for field in stated}
    schema = _object()
    value: dict[str, Any] = {}
    inner = [field for field in required if field.keys[0] in domain.nested]
    nest = rng.choice(domain.nest) if len(inner) > 1 and rng.random() < 0.6 else ""
    for field in required:
        parent_schema = schema
        parent_value = value
        if nest and field in inner:
            parent_schema = _property(schema, nest, _object())
            parent_value = value.setdefault(nest, {})
        _property(parent_schema, keys[field], _typed(field.kind, values[field], rng))
        parent_value[keys[field]] = values[field]
    return Draw(domain=domain, request=_request(domain, values, split, rng, language), schema=schema, value=value)


def _object() -> dict[str, Any]:
    return {"type": "object", "properties": {}, "required": []}


def _property(schema: dict[str, Any], key: str, of: dict[str, Any]) -> dict[str, Any]:
    """Add a property unless it exists. Return its schema."""
    if key not in schema["properties"]:
        schema["properties"][key] = of
        schema["required"].append(key)
    property_schema: dict[str, Any] = schema["properties"][key]
    return property_schema


def _record(split: str, rng: random.Random) -> Domain:
    thing, verb = (rng.choice(words.split()) for words in THINGS)
    fields: dict[str, Field] = {}
    for kind in rng.choices(list(ATTRIBUTES), k=5):
        key = made_up(split, rng) if rng.random() < 0.25 else rng.choice(ATTRIBUTES[kind].split())
        fields[key] = Field((key,), kind, {})
    asks = wordings(f"{verb} this {thing} | {verb} a {thing} // {verb} one {thing} // {verb} the {thing}")
    return Domain("record", (f"{verb}_{thing}",), asks, tuple(fields.values()))


def _value(kind: str, split: str, rng: random.Random, strings: Mapping[str, Make]) -> Any:
    name, *words = kind.split()
    if name == "int":
        return rng.randint(int(words[0]), int(words[1]))
    if name == "num":
        tenths = rng.randint(10 * int(words[0]), 10 * int(words[1]))
        return tenths / 10 if tenths % 10 else tenths // 10
    if name == "bool":
        return rng.random() < 0.5
    if name == "enum":
        return rng.choice(words)
    if name == "list":
        return list(dict.fromkeys(strings[words[0]](split, rng) for _ in range(rng.randint(1, 3))))
    return strings[name](split, rng)


def _typed(kind: str, value: Any, rng: random.Random) -> dict[str, Any]:
    name, *words = kind.split()
    if name == "enum":
        others = rng.sample([word for word in words if word != value], min(rng.randint(1, 3), len(words) - 1))
        return {"type": "string", "enum": rng.sample([value, *others], len(others) + 1)}
    if name == "list":
        return {"type": "array", "items": {"type": "string"}}
    return {"type": {"int": "integer", "num": "number", "bool": "boolean"}.get(name, "string")}


def _request(domain: Domain, values: Mapping[Field, Any], split: str, rng: random.Random, language: Language) -> str:
    text = rng.choice(WRAPPERS[split]).format(rng.choice(domain.asks[split]))
    text = text[0].upper() + text[1:]
    # Lists and dishes contain an "and" themselves.
    plain = not any(field.kind.startswith(("list", "dish")) for field in values)
    joint = rng.choice((", ", ", ", ", ", "; ", " and " if plain else ", "))
    for n, field in enumerate(rng.sample(list(values), len(values))):
        generic = not field.says or rng.random() < GENERIC
        own_wording = ", " if field.kind == "bool" else " "
        first = ": " if generic else own_wording
        clause = _clause(field, values[field], generic, split, rng, language)
        text += (joint if n else first) + language.turn(clause, rng)
    return text + rng.choice((".", ".", ""))


def _clause(field: Field, value: Any, generic: bool, split: str, rng: random.Random, language: Language) -> str:
    key = rng.choice(field.keys).removeprefix("is_").replace("_", " ")
    if field.kind == "bool":
        yes, no = rng.choice((language.switches if generic else field.says)[split]).split(" ~ ")
        return (yes if value else no).format(key=key)
    text = " and ".join(", ".join(value).rsplit(", ", 1)) if isinstance(value, list) else str(value)
    return rng.choice((language.frames if generic else field.says)[split]).format(text, key=key, value=text)


def message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
