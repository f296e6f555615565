"""The structured task: answer a request in plain words with JSON for a schema, or with a tool call.

Keys, their order and types are in the schema only; values are in the request only, which may contain more than the
schema asks for. Wordings, words that fill slots, and sets of keys occur in one split only. Digits are random, and the
words of an enum are in the schema.

JSON is written without spaces, in the order of the schema, which takes the fewest tokens. The chat template writes tool
calls in the model's own syntax.
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from gesso.chat.answer import parse
from gesso.eval.structured.requests import make_item
from gesso.eval.task import Item, check_draw


@dataclass(frozen=True, kw_only=True)
class Structured:
    name: ClassVar[str] = "structured"
    scores: ClassVar[tuple[str, ...]] = ("fields", "valid", "share")
    options: ClassVar[Mapping[str, Any]] = MappingProxyType({"max_new_tokens": 64})  # answers are shorter
    schema_in_prompt: bool = True  # without it, only a constraint can give the keys

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        check_draw(split, count)
        rngs = (random.Random(f"structured {split} {seed} {n}") for n in range(count))
        return (
            make_item(f"{split}/{seed}/{n}", split, rng, schema_in_prompt=self.schema_in_prompt)
            for n, rng in enumerate(rngs)
        )

    def score(self, item: Item, output: str) -> dict[str, float]:
        """Return `fields` (all fields correct, no others), `valid` (matches the schema or the parameters of a declared
        tool) and `share` (of correct fields; 0 if another tool is called).
        """
        name, answer = _read(item, output)
        schema = item.meta["schema"] if "schema" in item.meta else _parameters(item).get(name)
        if answer is None or schema is None:
            return dict.fromkeys(self.scores, 0.0)
        right_tool = name == item.meta.get("call", "")
        expected_fields = dict(_leaves(item.meta["value"]))
        fields = dict(_leaves(answer))
        right = sum(path in fields and _same(value, fields[path]) for path, value in expected_fields.items())
        return {
            "fields": float(right_tool and right == len(expected_fields) == len(fields)),
            "valid": float(satisfies(answer, schema)),
            "share": right_tool * right / len(expected_fields.keys() | fields.keys()),
        }


def _read(item: Item, output: str) -> tuple[str, Any]:
    """Return the called tool ("" for plain JSON) and its JSON, which is None for a malformed answer."""
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
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _refuse(literal: str) -> None:
    raise ValueError(f"{literal} is not JSON")


def satisfies(value: Any, schema: Mapping[str, Any]) -> bool:
    """Validate a value by the keywords of generated schemas: type, enum of strings, items, properties, required."""
    kind = schema["type"]
    if kind == "object":
        properties = schema["properties"].items()
        return isinstance(value, dict) and (
            all(key in value for key in schema["required"])
            and all(satisfies(value[key], inner) for key, inner in properties if key in value)
        )
    if kind == "array":
        return isinstance(value, list) and all(satisfies(item, schema["items"]) for item in value)
    if kind == "string":
        return isinstance(value, str) and value in schema.get("enum", (value,))
    if kind == "boolean" or isinstance(value, bool):  # bool is a subclass of int
        return kind == "boolean" and isinstance(value, bool)
    # 2.0 is an integer in JSON Schema.
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return whole or (kind == "number" and isinstance(value, float))


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (path, value) of every field. An empty object counts as a value."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path, value


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)
