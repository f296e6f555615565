"""The structured task: a request in plain words and a JSON schema, or tools, in; JSON, or a call of a tool, out.

Keys, their order and their types stand in the schema only, values in the request only, which may say more than is asked
for. No wording, no word that fills a slot and no set of keys of one split occurs in another; digits are random, and the
words of an enum are in the schema.

JSON is written without spaces, in the order of the schema: the form with the fewest tokens. A call is written by the
chat template, in the model's own syntax.
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from gesso.chat.answer import ToolCall, format_call, parse
from gesso.eval.structured_domains import (
    ATTRIBUTES,
    DOMAINS,
    FRAMES,
    SWITCHES,
    THINGS,
    WRAPPERS,
    Domain,
    Field,
    wordings,
)
from gesso.eval.structured_talk import small_talk
from gesso.eval.structured_words import STRINGS, made_up
from gesso.eval.task import Item, check_draw, split_of

INSTRUCTION = "Answer in JSON by this schema: "
CALLS = 0.45  # share of items that have tools
CHAT = 0.03  # share of training rows that are small talk: a model that only knows JSON greets nobody
RECORDS = 0.1  # share of items about a thing of any kind
LONGEST = 800  # characters of tools as JSON, so that prompt and answer are below 384 tokens of a small vocabulary
GENERIC = 0.35  # share of values given by a field's name instead of a wording of its own


@dataclass(frozen=True, kw_only=True)
class Structured:
    name: ClassVar[str] = "structured"
    scores: ClassVar[tuple[str, ...]] = ("fields", "valid", "share")
    options: ClassVar[Mapping[str, Any]] = MappingProxyType({"max_new_tokens": 64})  # answers are shorter

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        check_draw(split, count)
        return (_item(f"{split}/{seed}/{n}", split, random.Random(f"structured {split} {seed} {n}"))
                for n in range(count))  # fmt: skip

    def score(self, item: Item, output: str) -> dict[str, float]:
        """`fields`: all are right and nothing else is there. `valid`: by the schema, or a declared tool's parameters.
        `share`: of the fields, how many are right; 0 if another tool is called.
        """
        name, found = _read(item, output)
        schema = item.meta["schema"] if "schema" in item.meta else _parameters(item).get(name)
        if found is None or schema is None:
            return dict.fromkeys(self.scores, 0.0)
        right_tool = name == item.meta.get("call", "")
        wanted, got = (dict(_leaves(value)) for value in (item.meta["value"], found))
        right = sum(path in got and _same(value, got[path]) for path, value in wanted.items())
        return {
            "fields": float(right_tool and right == len(wanted) == len(got)),
            "valid": float(satisfies(found, schema)),
            "share": right_tool * right / len(wanted.keys() | got.keys()),
        }

    def training_rows(self, count: int, seed: int) -> Iterator[dict[str, Any]]:
        """Rows of `messages`, and of `tools` where there are some."""
        check_draw("train", count)
        for n in range(count):
            rng = random.Random(f"structured rows {seed} {n}")
            yield _chat(rng) if rng.random() < CHAT else _row(_item("", "train", rng))


# --- making ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """A request, and what it says as the schema wants it."""

    domain: Domain
    request: str
    schema: dict[str, Any]
    value: dict[str, Any]


def _item(name: str, split: str, rng: random.Random) -> Item:
    calls = rng.random() < CALLS
    drawn = _draw(split, rng, range(1, 5) if calls else range(2, 6))
    meta: dict[str, Any] = {"value": drawn.value}
    if not calls:
        content = f"{drawn.request}\n{INSTRUCTION}{compact(drawn.schema)}"
        meta["schema"] = drawn.schema
        return Item(
            name=name,
            prompt=(_message("user", content),),
            expected=compact(drawn.value),
            meta=meta,
            constraint={"json_schema": drawn.schema},
        )
    right = _tool(drawn, split, rng)
    tools = {drawn.domain.name: right}
    for _ in range(rng.choice((0, 1, 1, 2))):
        other = _draw(split, rng, range(1, 3))
        more = {other.domain.name: _tool(other, split, rng), **tools}
        tools = more if len(compact(list(more.values()))) <= LONGEST else tools
    meta["tools"] = tuple(rng.sample(list(tools.values()), len(tools)))
    meta["call"] = right["function"]["name"]
    expected = format_call(ToolCall(meta["call"], drawn.value))
    return Item(
        name=name,
        prompt=(_message("user", drawn.request),),
        expected=expected,
        meta=meta,
        constraint={"tool_choice": "required"},
    )


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _tool(drawn: Draw, split: str, rng: random.Random) -> dict[str, Any]:
    description = rng.choice(drawn.domain.asks[split]).capitalize() + "."
    function = {"name": rng.choice(drawn.domain.tools), "description": description, "parameters": drawn.schema}
    return {"type": "function", "function": function}


def _draw(split: str, rng: random.Random, sizes: range) -> Draw:
    while True:
        domain = _record(split, rng) if rng.random() < RECORDS else rng.choice(DOMAINS)
        said = rng.sample(domain.fields, min(rng.choice(sizes), len(domain.fields)))
        asked = rng.sample(said, len(said) - (len(said) > 2 and rng.random() < 0.3))
        keys = {field: rng.choice(field.keys) for field in asked}
        if split_of(" ".join(sorted(keys.values()))) == split:
            break
    values = {field: _value(field.kind, split, rng) for field in said}
    schema, value = _object(), dict[str, Any]()
    inner = [field for field in asked if field.keys[0] in domain.nested]
    nest = rng.choice(domain.nest) if len(inner) > 1 and rng.random() < 0.6 else ""
    for field in asked:
        at, into = schema, value
        if nest and field in inner:
            at, into = _grown(schema, nest, _object()), value.setdefault(nest, {})
        _grown(at, keys[field], _typed(field.kind, values[field], rng))
        into[keys[field]] = values[field]
    return Draw(domain, _request(domain, values, split, rng), schema, value)


def _object() -> dict[str, Any]:
    return {"type": "object", "properties": {}, "required": []}


def _grown(schema: dict[str, Any], key: str, of: dict[str, Any]) -> dict[str, Any]:
    """The schema of a property, which is added if it is not there."""
    if key not in schema["properties"]:
        schema["properties"][key] = of
        schema["required"].append(key)
    found: dict[str, Any] = schema["properties"][key]
    return found


def _record(split: str, rng: random.Random) -> Domain:
    thing, verb = (rng.choice(words.split()) for words in THINGS)
    fields: dict[str, Field] = {}
    for kind in rng.choices(list(ATTRIBUTES), k=5):
        key = made_up(split, rng) if rng.random() < 0.25 else rng.choice(ATTRIBUTES[kind].split())
        fields[key] = Field((key,), kind, {})
    asks = wordings(f"{verb} this {thing} | {verb} a {thing} // {verb} one {thing} // {verb} the {thing}")
    return Domain("record", (f"{verb}_{thing}",), asks, tuple(fields.values()))


def _value(kind: str, split: str, rng: random.Random) -> Any:
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
        return list(dict.fromkeys(STRINGS[words[0]](split, rng) for _ in range(rng.randint(1, 3))))
    return STRINGS[name](split, rng)


def _typed(kind: str, value: Any, rng: random.Random) -> dict[str, Any]:
    name, *words = kind.split()
    if name == "enum":
        others = rng.sample([one for one in words if one != value], min(rng.randint(1, 3), len(words) - 1))
        return {"type": "string", "enum": rng.sample([value, *others], len(others) + 1)}
    if name == "list":
        return {"type": "array", "items": {"type": "string"}}
    return {"type": {"int": "integer", "num": "number", "bool": "boolean"}.get(name, "string")}


def _request(domain: Domain, values: Mapping[Field, Any], split: str, rng: random.Random) -> str:
    text = rng.choice(WRAPPERS[split]).format(rng.choice(domain.asks[split]))
    text = text[0].upper() + text[1:]
    # A list and a dish have an "and" of their own.
    plain = not any(field.kind.startswith(("list", "dish")) for field in values)
    joint = rng.choice((", ", ", ", ", ", "; ", " and " if plain else ", "))
    for n, field in enumerate(rng.sample(list(values), len(values))):
        generic = not field.says or rng.random() < GENERIC
        first = ": " if generic else ", " if field.kind == "bool" else " "
        text += (joint if n else first) + _clause(field, values[field], generic, split, rng)
    return text + rng.choice((".", ".", ""))


def _clause(field: Field, value: Any, generic: bool, split: str, rng: random.Random) -> str:
    key = rng.choice(field.keys).removeprefix("is_").replace("_", " ")
    if field.kind == "bool":
        yes, no = rng.choice((SWITCHES if generic else field.says)[split]).split(" ~ ")
        return (yes if value else no).format(key=key)
    said = " and ".join(", ".join(value).rsplit(", ", 1)) if isinstance(value, list) else str(value)
    return rng.choice((FRAMES if generic else field.says)[split]).format(said, key=key, value=said)


def _row(item: Item) -> dict[str, Any]:
    if "tools" not in item.meta:
        return {"messages": [*item.prompt, _message("assistant", item.expected)]}
    call = {"type": "function", "function": {"name": item.meta["call"], "arguments": item.meta["value"]}}
    answer = {**_message("assistant", ""), "tool_calls": [call]}
    return {"messages": [*item.prompt, answer], "tools": list(item.meta["tools"])}


def _chat(rng: random.Random) -> dict[str, Any]:
    question, answer = small_talk(rng)
    row: dict[str, Any] = {"messages": [_message("user", question), _message("assistant", answer)]}
    if rng.random() < 0.25:  # tools may be there and not be called for
        row["tools"] = [_tool(_draw("train", rng, range(1, 4)), "train", rng)]
    return row


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


# --- scoring --------------------------------------------------------------------------------------------------------


def _read(item: Item, output: str) -> tuple[str, Any]:
    """The name of the tool that is called, none for plain JSON, and the JSON; None if it is no answer."""
    if "tools" not in item.meta:
        try:
            return "", json.loads(output, object_pairs_hook=_once, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return "", None
    answer = parse(output)
    if len(answer.tool_calls) != 1 or answer.malformed or answer.text.strip():
        return "", None
    return answer.tool_calls[0].name, answer.tool_calls[0].arguments


def _parameters(item: Item) -> dict[str, dict[str, Any]]:
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in item.meta["tools"]}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _refuse(literal: str) -> None:
    raise ValueError(f"{literal} is no JSON")


def satisfies(value: Any, schema: Mapping[str, Any]) -> bool:
    """JSON Schema, as far as the schemas made here go: type, enum of strings, items, properties, required."""
    kind = schema["type"]
    if kind == "object":
        properties = schema["properties"].items()
        return isinstance(value, dict) and (
            all(key in value for key in schema["required"])
            and all(satisfies(value[key], inner) for key, inner in properties if key in value)
        )
    if kind == "array":
        return isinstance(value, list) and all(satisfies(one, schema["items"]) for one in value)
    if kind == "string":
        return isinstance(value, str) and value in schema.get("enum", (value,))
    if kind == "boolean" or isinstance(value, bool):  # which Python takes for an int
        return kind == "boolean" and isinstance(value, bool)
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())  # 2.0 is an integer in JSON
    return whole or (kind == "number" and isinstance(value, float))


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Fields by their path; an object is its fields, unless it has none."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path, value


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)
