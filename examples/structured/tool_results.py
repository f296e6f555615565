"""Conversations in which the assistant calls a tool and then states its result in a sentence.

Call and result determine the sentence, so a small model can be certain of it. Short values are repeated word for word.
"""

import json
import random
import re
import tomllib
from pathlib import Path
from typing import Any

from examples.structured.off_topic import fill
from gesso.eval.structured.requests import compact, draw, make_tool, message
from gesso.eval.structured.words import STRINGS, made_up, word

DONE = "Done! It worked."
NOTHING = "The tool gave no result."
LONG = "The tool has answered, but its result is too long for me to repeat."
NUMBER = re.compile(r"[1-9]\d*(\.\d*[1-9])?")

_DATA: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
LOOKUPS = [line.split(" ~ ") for line in _DATA["lookups"].strip().splitlines()]
_FIELDS = [line.split(" ~ ") for line in _DATA["fields"].strip().splitlines()]
_WORDS = {name: re.split(r"[|\n]", text.strip()) for name, text in _DATA.items() if name not in ("lookups", "fields")}


def tool_exchange(rng: random.Random) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a tool, and the messages: request, call, result, and an answer that states the result."""
    if rng.random() < 0.3:
        return _action(rng)
    name, preposition, keys, kind, forms = rng.choice(LOOKUPS)
    if rng.random() < 0.15:  # names that the model has not seen
        name, keys = made_up("train", rng), made_up("train", rng)
    key, about = rng.choice(keys.split()), _about(kind, rng)
    what = f"{name} {preposition} {about}"
    value = _slots(rng.choice(forms.split("|")), rng)
    tool = lookup_tool(name, preposition, key, rng)
    if rng.random() < 0.15:
        content = answer = rng.choice((f"It is {value}.", f"The {what} is {value}.", f"The {name} is {value}."))
    else:
        fields = {name.replace(" ", "_"): value, **({key: about} if rng.random() < 0.3 else {})}
        content, answer = _result(value, f"The {what} is {value}.", fields, rng)
    return tool, _exchange(_request(what, rng), tool, {key: about}, content, answer)


def _request(what: str, rng: random.Random) -> str:
    text = rng.choice(_WORDS["asks"]).format(what)
    text = rng.choice((text, text[0].upper() + text[1:], text[0].upper() + text[1:]))
    asks = text.lower().startswith(("what", "can", "how", "do", "could"))
    return text + rng.choice(("?", "?", "?", "") if asks else (".", "", "!", " please"))


def lookup_tool(name: str, preposition: str, key: str, rng: random.Random) -> dict[str, Any]:
    """Return a tool that looks up a value by one argument."""
    verb, joined = rng.choice(_WORDS["verbs"]), name.replace(" ", "_")
    called = rng.choice((f"{verb}_{joined}", f"{verb}_{joined}", joined, f"{joined}_{verb}", f"{verb}{joined.title()}"))
    about = f"the {name} {preposition} a {key.replace('_', ' ')}"
    description = rng.choice(
        (name.capitalize(), f"Get {about}.", f"Returns {about}", f"{verb.capitalize()} {about}", "")
    )
    argument: dict[str, Any] = {"type": "string"}
    if rng.random() < 0.2:
        argument |= rng.choice(({"maxLength": 20}, {"description": f"The {key}."}, {"title": key.capitalize()}))
    parameters: dict[str, Any] = {"type": "object", "properties": {key: argument}, "required": [key]}
    if rng.random() < 0.3:
        parameters["additionalProperties"] = False
    return {"type": "function", "function": {"name": called, "description": description, "parameters": parameters}}


def _action(rng: random.Random) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return an exchange about one of the requests of the structured task."""
    drawn = draw("train", rng, range(1, 4))
    tool, thing = make_tool(drawn, "train", rng), drawn.domain.name
    forms = ("The {thing} was saved", "{Thing} {state}", "Your {thing} has number {n}", "The {thing} is {state}")
    told = _slots(rng.choice(forms).replace("{thing}", thing).replace("{Thing}", thing.capitalize()), rng) + "."
    fields = {"status": rng.choice(_WORDS["states"]), f"{thing}_id": rng.randint(1, 9999)}
    content, answer = _result(told[: len(told) - (rng.random() < 0.4)], told, fields, rng)
    return tool, _exchange(drawn.request, tool, drawn.value, content, answer)


def _exchange(
    asked: str, tool: dict[str, Any], arguments: dict[str, Any], content: str, answer: str
) -> list[dict[str, Any]]:
    name = tool["function"]["name"]
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        message("user", asked),
        {**message("assistant", ""), "tool_calls": [call]},
        {**message("tool", content), "name": name},
        message("assistant", answer),
    ]


def _result(plain: str, told: str, fields: dict[str, Any], rng: random.Random) -> tuple[str, str]:
    """Return the content of a tool message, and the sentence that answers it.

    The content is `plain`, answered with the sentence `told`; or JSON with `fields` or random ones; or a list, an
    acknowledgement, an error, nothing, or a text too long to repeat.
    """
    kind = rng.random()
    if kind < 0.4:
        return plain, told
    if kind < 0.75:
        values = fields if rng.random() < 0.4 else _fields(rng)
        sentence = _joined([_clause(key, value) for key, value in values.items()])
        return _json(values, rng), f"{sentence[0].upper()}{sentence[1:]}."
    if kind < 0.8:
        found = [word(rng.choice(("noun", "city", "first", "food")), "train", rng) for _ in range(rng.randint(1, 4))]
        return _json(found, rng), f"I found {_joined(found)}."
    if kind < 0.87:
        okay = rng.choice(_WORDS["okay"])
        return rng.choice((okay, okay, _json({rng.choice(("ok", "success", "done")): True}, rng))), DONE
    if kind < 0.94:
        fault = rng.choice(_WORDS["faults"])
        forms = (f"Error: {fault}", f"error: {fault}", _json({"error": fault}, rng), f"failed: {fault}")
        return rng.choice(forms), f"That did not work: {fault}."
    if kind < 0.96:
        return rng.choice(("", *_WORDS["empty"])), NOTHING
    long = [_slots("{adj} {noun} in {city}, {first} {last}, {n} {noun}", rng) for _ in range(rng.randint(5, 9))]
    rows = [{"name": one, "id": rng.randint(1, 999)} for one in long[:5]]
    return rng.choice((_json(rows, rng), ". ".join(long))), LONG


def _fields(rng: random.Random) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for names, forms in rng.sample(_FIELDS, rng.choice((1, 1, 2, 2, 2, 3))):
        key = made_up("train", rng) if rng.random() < 0.1 else rng.choice(names.split())
        said = _slots(rng.choice(forms.split("|")), rng)
        values[key] = json.loads(said) if NUMBER.fullmatch(said) else said
    if rng.random() < 0.15:
        values[rng.choice(_WORDS["yes_no"])] = rng.random() < 0.5
    return values


def _clause(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"it is {key}" if value else f"it is not {key}"
    return f"the {key.replace('_', ' ')} is {value}"


def _joined(parts: list[str]) -> str:
    return " and ".join(", ".join(parts).rsplit(", ", 1)) if len(parts) > 1 else parts[0]


def _json(value: Any, rng: random.Random) -> str:
    return rng.choice((json.dumps(value), json.dumps(value), compact(value)))


def _about(kind: str, rng: random.Random) -> str:
    if kind == "sum":
        return f"{rng.randint(1, 99)} {rng.choice('+-*/')} {rng.randint(1, 99)}"
    if kind == "currency":
        return rng.choice(_WORDS["currencies"])
    return STRINGS[kind]("train", rng)


def _slots(form: str, rng: random.Random) -> str:
    """Fill the slots of a value."""
    made = {
        "n": str(rng.randint(0, 99)),
        "d": f"{rng.randint(1, 199)}.{rng.randint(1, 99)}",
        "big": str(rng.randint(1000, 999999)),
        "sky": rng.choice(_WORDS["skies"]),
        "state": rng.choice(_WORDS["states"]),
        "letter": rng.choice("ABCDEFGH"),
        **{
            kind: STRINGS[kind]("train", rng)
            for kind in ("time", "date", "phone", "email", "street", "code", "version")
        },
    }
    for name, value in made.items():
        form = form.replace(f"{{{name}}}", value)
    return fill(form, rng)
