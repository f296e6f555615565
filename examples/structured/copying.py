"""Training rows for copying: JSON and tool calls with names, numbers, dates and addresses of any length in tokens.

Three kinds of requests: those of the structured task with longer values, sentences of `everyday.toml`, and lists of
random values under random names. A row is a function of its number and the seed.
"""

import random
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from examples.structured.long_values import ANY, LONG_VALUES, long_word, number, phrase, url
from examples.structured.rows import row_of
from gesso.chat.messages import with_schema
from gesso.eval.structured.requests import PLAIN, compact, make_item, message
from gesso.eval.structured.words import word
from gesso.eval.task import check_draw, split_of

EVERYDAY, LISTS = 0.5, 0.2  # shares of the rows; the others are requests of the structured task
CALLS = 0.5  # share of those rows with tools
MOST = 1100  # characters of a row as JSON: at most 512 tokens
LONGEST_ANSWER = 190  # characters: at most 96 tokens
_SLOT = re.compile(r"\{(\w+)\}")
_VALUES = {**LONG_VALUES, "phrase": phrase, "url": url}
LONG = replace(PLAIN, strings=LONG_VALUES)
_BEFORE = ("", "", "", "", "Please: ", "Hi! ", "Hello. ", "One more: ", "Now this. ")
_AFTER = ("", "", "", "", " Thanks!", " Thank you.", " Please.", " That is all.")


@dataclass(frozen=True)
class Field:
    keys: tuple[str, ...]
    kind: str
    forms: tuple[tuple[str, str], ...]  # of a bool: how true and false are written


@dataclass(frozen=True)
class Everyday:
    tools: tuple[str, ...]
    asks: str
    says: tuple[str, ...]
    fields: Mapping[str, Field]


@dataclass(frozen=True)
class Filled:
    """A request, the schema of its answer, and the answer."""

    request: str
    schema: dict[str, Any]
    value: dict[str, Any]


def _field(keys: str, kind: str, forms: str = "") -> Field:
    pairs = tuple(tuple(part.strip() for part in form.split("~")) for form in forms.split("|") if form)
    return Field(tuple(keys.split()), kind, tuple((yes, no) for yes, no in pairs))


_DATA = tomllib.loads(Path(__file__).with_name("everyday.toml").read_text(encoding="utf-8"))
REQUESTS = tuple(
    Everyday(
        tools=tuple(row["tools"].split()),
        asks=row["asks"],
        says=tuple(row["says"]),
        fields={name: _field(*field) for name, field in row["fields"].items()},
    )
    for row in _DATA["request"]
)


def training_rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield rows of `messages`, and of `tools` where the request has some."""
    check_draw("train", count)
    for n in range(count):
        yield _row(random.Random(f"copying rows {seed} {n}"))


def _row(rng: random.Random) -> dict[str, Any]:
    kind = rng.random()
    while True:
        if kind < EVERYDAY:
            everyday = rng.choice(REQUESTS)
            row = _answered(fill(everyday, rng), everyday, rng)
        elif kind < EVERYDAY + LISTS:
            row = _answered(_listed(rng), None, rng)
        else:
            row = row_of(make_item("", "train", rng, language=LONG))
        if len(compact(row)) <= MOST and len(compact(row["messages"][-1])) <= LONGEST_ANSWER:
            return row


def fill(everyday: Everyday, rng: random.Random) -> Filled:
    """Return one of the sentences with random values, and a schema that asks for some of them."""
    says = rng.choice(everyday.says)
    slots = [name for name in everyday.fields if f"{{{name}}}" in says]
    texts, values = {}, {}
    for name in slots:
        texts[name], values[name] = _drawn(everyday.fields[name], rng)
    while True:
        asked = slots if rng.random() < 0.7 else rng.sample(slots, rng.randint(1, len(slots)))
        asked = asked if rng.random() < 0.5 else rng.sample(asked, len(asked))
        keys = [rng.choice(everyday.fields[name].keys) for name in asked]
        # Two fields may share a synonym. Each set of names belongs to one split, as in the structured task.
        if len(set(keys)) == len(keys) and split_of(" ".join(sorted(keys))) == "train":
            break
    properties = {key: _typed(everyday.fields[name], values[name], rng) for name, key in zip(asked, keys, strict=True)}
    schema = {"type": "object", "properties": properties, "required": keys}
    value = {key: values[name] for name, key in zip(asked, keys, strict=True)}
    said = _SLOT.sub(lambda slot: texts[slot[1]], says)
    request = rng.choice(_BEFORE) + re.sub(r" +", " ", said) + rng.choice(_AFTER)
    return Filled(request, schema, value)


def _drawn(field: Field, rng: random.Random) -> tuple[str, Any]:
    """Return a random value of a field, and how the sentence has it."""
    kind, *words = field.kind.split()
    if kind == "bool":
        yes, no = rng.choice(field.forms)
        value = rng.random() < 0.5
        return (yes if value else no), value
    if kind == "enum":
        choice = rng.choice(words)
        return choice, choice
    if kind == "int":
        whole = _integer(int(words[0]), int(words[1]), rng)
        return str(whole), whole
    if kind == "num":
        whole = _integer(int(words[0]), int(words[1]), rng)
        decimal = whole + rng.randint(1, 99) / 100 if rng.random() < 0.5 else whole
        return str(decimal), decimal
    text = _VALUES[kind]("train", rng)
    return text, text


def _integer(low: int, high: int, rng: random.Random) -> int:
    """Return a number within the bounds, each count of digits as likely."""
    digits = rng.randint(len(str(low)), len(str(high)))
    return rng.randint(max(low, 10 ** (digits - 1) if digits > 1 else 0), min(high, 10**digits - 1))


def _typed(field: Field, value: Any, rng: random.Random) -> dict[str, Any]:
    kind, *words = field.kind.split()
    if kind == "enum":
        others = rng.sample([one for one in words if one != value], rng.randint(1, len(words) - 1))
        return {"type": "string", "enum": rng.sample([value, *others], len(others) + 1)}
    return {"type": {"int": "integer", "num": "number", "bool": "boolean"}.get(kind, "string")}


def _listed(rng: random.Random) -> Filled:
    """Return a list of random values under random names, in one of several notations."""
    notation, joint = rng.choice((("{}: {}", ", "), ("{} is {}", ", "), ("{} = {}", "; "), ("{}: {}", "\n")))
    schema: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
    value: dict[str, Any] = {}
    said = []
    for _ in range(rng.randint(1, 5)):
        key = rng.choice((long_word("train", rng), word(rng.choice(("noun", "verb", "food")), "train", rng)))
        key = f"{key}_{word('noun', 'train', rng)}" if rng.random() < 0.3 else key
        if key in value:
            continue
        whole = rng.random() < 0.3
        drawn: Any = int(number(rng, 6)) if whole else rng.choice(ANY)("train", rng)
        said.append(notation.format(key.replace("_", " "), drawn))
        if rng.random() < 0.15 and len(said) > 1:  # said, and not asked for
            continue
        schema["properties"][key] = {"type": "integer" if whole else "string"}
        schema["required"].append(key)
        value[key] = drawn
    rng.shuffle(said)
    opening = rng.choice(("Save this: ", "", "Please note: ", "Copy: ", "Fill in the form. ", "Record: "))
    return Filled(opening + joint.join(said) + rng.choice((".", "")), schema, value)


def _answered(filled: Filled, everyday: Everyday | None, rng: random.Random) -> dict[str, Any]:
    """Return a row that answers with JSON, or with a call of one of one to three tools."""
    prompt = message("user", filled.request)
    if rng.random() >= CALLS:
        return {
            "messages": [*with_schema([prompt], filled.schema), message("assistant", compact(filled.value))],
        }
    name, asks = _tool_of(everyday, rng)
    tools = {name: _tool(name, asks, filled.schema)}
    for _ in range(rng.choice((0, 0, 1, 2))):
        other = rng.choice(REQUESTS)
        if other is everyday:
            continue
        other_name, other_asks = _tool_of(other, rng)
        tools.setdefault(other_name, _tool(other_name, other_asks, fill(other, rng).schema))
    call = {"type": "function", "function": {"name": name, "arguments": filled.value}}
    answer = {**message("assistant", ""), "tool_calls": [call]}
    return {"messages": [prompt, answer], "tools": rng.sample(list(tools.values()), len(tools))}


def _tool_of(everyday: Everyday | None, rng: random.Random) -> tuple[str, str]:
    """Return the name and the description of a tool."""
    if everyday is not None:
        return rng.choice(everyday.tools), everyday.asks
    name = rng.choice(("save", "record", "note", "copy", "fill_form", "store"))
    return name, f"{name.replace('_', ' ').capitalize()} these values."


def _tool(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
