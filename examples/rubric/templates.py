"""The examples of the studio, the README, the quickstart, the guides and the API as templates.

A template has the values that are shown, and draws fresh ones: words of the test split, which no training row contains,
and random numbers, dates and times.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.rubric.questions import Call, Chat, Choice, Continuation, Hole, Json, Puzzle, Question, Rewrite
from gesso.demo import FILES
from gesso.eval.structured.words import STRINGS, made_up, word
from gesso.eval.sudoku.task import draw as draw_puzzle

Values = Mapping[str, Any]
DEMO = Path(__file__).parents[1] / "demo"
WHO = "I am gesso-mini"
CAN = "I turn requests into JSON or tool calls, solve Sudoku puzzles"
HOW = "I begin with a canvas of noise"


@dataclass(frozen=True, kw_only=True)
class Template:
    name: str
    where: str  # files that show the example
    shown: Values
    kinds: Mapping[str, str]  # of the values, see `drawn`; empty: there is nothing to fill
    ask: Callable[[Values], Question]
    model: str = "gesso-mini"

    def fresh(self, number: int) -> Values:
        """Return filling `number`, which is the same on every machine."""
        rng = random.Random(f"rubric {self.name} {number}")
        while True:
            values = {name: drawn(kind, rng) for name, kind in self.kinds.items()}
            texts = [value for value in values.values() if isinstance(value, str)]
            if len(set(texts)) == len(texts):
                return values


def drawn(kind: str, rng: random.Random) -> Any:
    name, *words = kind.split()
    if name == "int":
        return rng.randint(int(words[0]), int(words[1]))
    if name == "bool":
        return rng.random() < 0.5
    if name == "one":
        return rng.choice(words)
    if name == "letter":
        return rng.choice("abcdefghijklmnopqrstuvwxyz")
    if name == "attribute":
        return rng.choice((drawn("letter", rng), word("noun", "test", rng), made_up("test", rng)))
    if name == "class":
        return word("noun", "test", rng).capitalize()
    if name == "puzzle":
        return draw_puzzle("test", 34, rng)[0]
    if name == "venue":
        return rng.choice((word("last", "test", rng), word("first", "test", rng), STRINGS["venue"]("test", rng)))
    return STRINGS[name]("test", rng)


# --- JSON and tool calls ---------------------------------------------------------------------------------------------


def _schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


FLIGHT = _schema(
    {
        "departure": {"type": "string"},
        "destination": {"type": "string"},
        "seats": {"type": "integer"},
        "travel_class": {"type": "string", "enum": ["economy", "business"]},
        "direct": {"type": "boolean"},
    }
)
PARTY = _schema({"name": {"type": "string"}, "party": {"type": "integer"}, "date": {"type": "string"}})
PERSON = _schema({"name": {"type": "string"}, "age": {"type": "integer"}})
TABLE = json.loads((DEMO / "table.json").read_text(encoding="utf-8"))
BOOK_TABLE = json.loads((FILES / "book_table.json").read_text(encoding="utf-8"))


def _flight(values: Values) -> Json:
    kind = "direct" if values["direct"] else "connecting"
    return Json(
        request=f"Find a {kind} flight from {values['departure']} to {values['destination']} for {values['seats']} "
        f"passengers in {values['travel_class']} class.",
        schema=FLIGHT,
        value=dict(values),
        options={"max_new_tokens": 96},
    )


def _party(values: Values) -> Call:
    function = {"name": "book_table", "description": "Book a table.", "parameters": PARTY}
    return Call(
        request=f"Hey, I need to book a table: a name of {values['name']}, a party of {values['party']}, on the date "
        f"{values['date']}.",
        tools=[{"type": "function", "function": function}],
        name="book_table",
        arguments=values,
        options={"max_new_tokens": 128},
    )


def _terrace(values: Values) -> Call:
    place = "on the terrace" if values["outdoor"] else "inside"
    return Call(
        request=f"Book a table at {values['restaurant']} for {values['guests']} people at {values['time']}, {place}.",
        tools=BOOK_TABLE,
        name="book_table",
        arguments=values,
    )


def _table(values: Values) -> Json:
    place = "outside" if values["outdoor"] else "inside"
    return Json(
        request=f"Book a table at {values['restaurant']} for {values['guests']} people on {values['date']} at "
        f"{values['time']}, {place}.",
        schema=TABLE,
        value=values,
    )


def _user(values: Values) -> str:
    return f"Save a user named {values['name']}, {values['age']} years old."


def _person(values: Values) -> Json:
    return Json(request=_user(values), schema=PERSON, value=values)


def _thinking(values: Values) -> Json:
    return Json(request=_user(values), schema=PERSON, value=values, options={"thinking": True})


def _save_user(values: Values) -> Call:
    function = {"name": "save_user", "parameters": PERSON}
    return Call(
        request=_user(values),
        tools=[{"type": "function", "function": function}],
        name="save_user",
        arguments=values,
        options={"tool_choice": "required"},
    )


# --- code ------------------------------------------------------------------------------------------------------------


def _before(values: Values) -> str:
    return (
        f"class {values['name']}:\n    def __init__(self, {values['x']}, {values['y']}):\n"
        f"        self.{values['x']} = {values['x']}\n        "
    )


def _missing(values: Values) -> str:
    return f"self.{values['y']} = {values['y']}"


def _shown_by_repr(values: Values) -> str:
    return (
        f'\n\n    def __repr__(self):\n        return f"{values["name"]}({{self.{values["x"]}}}, '
        f'{{self.{values["y"]}}})"\n'
    )


def _point(values: Values) -> Hole:
    return Hole(before=_before(values), after=_shown_by_repr(values), missing=_missing(values))


def _length(values: Values) -> Hole:
    after = f"\n\n    def length(self):\n        return hypot(self.{values['x']}, self.{values['y']})\n"
    return Hole(before=_before(values), after=after, missing=_missing(values))


def _edit(values: Values) -> Rewrite:
    return Rewrite(before=_before(values), wrong="self.z = z", after=_shown_by_repr(values), right=_missing(values))


def _init(values: Values) -> Continuation:
    x, y = values["x"], values["y"]
    return Continuation(
        prompt=f"class {values['name']}:\n    def __init__(self, {x}, {y}):\n",
        beginning=f"self.{x} = {x} self.{y} = {y}",
        options={"max_new_tokens": 12},
    )


def _line(values: Values) -> Continuation:
    return Continuation(prompt=_before(values).rstrip(" "), beginning=_missing(values), options={"stop": "\n\n"})


def _regex(values: Values) -> Continuation:
    options = {"max_new_tokens": 8, "regex": r"self\.[a-z] = [a-z]"}
    return Continuation(prompt=_before(values), beginning=_missing(values), options=options)


def _grammar(values: Values) -> Continuation:
    grammar = 'root ::= "self." name " = " name\nname ::= [a-z]'
    options = {"max_new_tokens": 8, "grammar": grammar}
    return Continuation(prompt=_before(values), beginning=_missing(values), options=options)


def _numpy(values: Values) -> Continuation:
    options = {"max_new_tokens": 4, "greed": 1.0, **values}
    return Continuation(prompt="import numpy as ", beginning="np", options=options)


# --- decisions, conversations and puzzles ----------------------------------------------------------------------------


def _operator(values: Values) -> Choice:
    signs = {"add": "+", "subtract": "-", "multiply": "*"}
    right, wrong = signs[values["name"]], signs[values["other"]]
    x, y = values["x"], values["y"]
    prompt = f"def {values['name']}({x}, {y}):\n    return {x}"
    return Choice(prompt=prompt, choices=[f" {right} {y}", f" {wrong} {y}"], right=f" {right} {y}")


def _color(values: Values) -> Choice:
    colors = sorted([values["color"], values["other"]])
    schema = {"type": "object", "properties": {"color": {"type": "string", "enum": colors}}, "required": ["color"]}
    request = f"Order a {values['color']} {values['item']}.\nAnswer in JSON by this schema: " + json.dumps(
        schema, separators=(",", ":")
    )
    choices = [f'{{"color":"{color}"}}' for color in colors]
    return Choice(
        prompt=[{"role": "user", "content": request}], choices=choices, right=f'{{"color":"{values["color"]}"}}'
    )


def _human(values: Values) -> Chat:
    return Chat(
        request="Are you human?", beginning="I am gesso-mini.", options={"choice": ["I am human.", "I am gesso-mini."]}
    )


def _chat(values: Values) -> Chat:
    return Chat(request=values["request"], beginning=values["beginning"], options={"max_new_tokens": 128})


def _sudoku(values: Values) -> Puzzle:
    return Puzzle(puzzle=values["puzzle"])


XY = {"name": "class", "x": "attribute", "y": "attribute"}
POINT = {"name": "Point", "x": "x", "y": "y"}
LETTERS = {"name": "class", "x": "letter", "y": "letter"}
ADA = {"name": "Ada", "age": 36}
USER = {"name": "person", "age": "int 1 99"}

TEMPLATES: Sequence[Template] = (
    Template(
        name="studio, JSON",
        where="gesso/serve/studio/form.js",
        shown={"departure": "Florence", "destination": "Munich", "seats": 2, "travel_class": "business",
               "direct": True},
        kinds={"departure": "city", "destination": "city", "seats": "int 2 9", "travel_class": "one economy business",
               "direct": "bool"},
        ask=_flight,
    ),
    Template(
        name="studio, tool call",
        where="gesso/serve/studio/welcome.js",
        shown={"name": "Ada", "party": 4, "date": "2031-05-09"},
        kinds={"name": "person", "party": "int 1 20", "date": "date"},
        ask=_party,
    ),
    Template(
        name="a hole before __repr__",
        where="gesso/serve/studio/write.js docs/quickstart.md docs/guides/infill.md docs/guides/serving.md",
        shown=POINT,
        kinds=XY,
        ask=_point,
    ),
    Template(name="a hole before length", where="docs/quickstart.md", shown=POINT, kinds=XY, ask=_length),
    Template(name="edit", where="docs/guides/infill.md", shown=POINT, kinds=LETTERS, ask=_edit),
    Template(
        name="a tool call",
        where="docs/quickstart.md",
        shown={"restaurant": "Luigi", "guests": 4, "time": "19:30", "outdoor": True},
        kinds={"restaurant": "venue", "guests": "int 1 20", "time": "time", "outdoor": "bool"},
        ask=_terrace,
    ),
    Template(
        name="JSON for table.json",
        where="docs/guides/structured-output.md",
        shown={"restaurant": "Luigi", "guests": 4, "date": "2026-05-12", "time": "19:30", "outdoor": True},
        kinds={"restaurant": "venue", "guests": "int 1 20", "date": "date", "time": "time", "outdoor": "bool"},
        ask=_table,
    ),
    Template(name="JSON of a user", where="docs/guides/structured-output.md", shown=ADA, kinds=USER, ask=_person),
    Template(name="JSON with thinking", where="docs/guides/structured-output.md", shown=ADA, kinds=USER, ask=_thinking),
    Template(name="a required call", where="docs/guides/structured-output.md", shown=ADA, kinds=USER, ask=_save_user),
    Template(name="two lines of code", where="docs/quickstart.md docs/guides/studio.md", shown=POINT, kinds=LETTERS,
             ask=_init),
    Template(name="a line of code", where="docs/quickstart.md", shown=POINT, kinds=LETTERS, ask=_line),
    Template(name="a regex", where="docs/guides/structured-output.md", shown=POINT, kinds=LETTERS, ask=_regex),
    Template(name="a grammar", where="docs/guides/structured-output.md", shown=POINT, kinds=LETTERS, ask=_grammar),
    Template(
        name="choices", where="docs/guides/structured-output.md", shown={"choice": ["np", "pd"]}, kinds={}, ask=_numpy
    ),
    Template(
        name="two letters", where="docs/guides/structured-output.md", shown={"regex": "[a-z]{2}"}, kinds={}, ask=_numpy
    ),
    Template(
        name="n and a letter",
        where="docs/guides/structured-output.md",
        shown={"grammar": 'root ::= "n" letter\nletter ::= [a-z]'},
        kinds={},
        ask=_numpy,
    ),
    Template(name="one of two answers", where="docs/guides/structured-output.md", shown={}, kinds={}, ask=_human),
    Template(
        name="a decision, operator",
        where="docs/guides/decisions.md",
        shown={"name": "add", "other": "subtract", "x": "a", "y": "b"},
        kinds={"name": "one add subtract multiply", "other": "one add subtract multiply", "x": "letter", "y": "letter"},
        ask=_operator,
    ),
    Template(
        name="a decision, color",
        where="docs/guides/decisions.md",
        shown={"color": "red", "other": "blue", "item": "shirt"},
        kinds={"color": "one red blue green black white yellow", "other": "one red blue green black white yellow",
               "item": "noun"},
        ask=_color,
    ),
    *(
        Template(name=request, where=where, shown={"request": request, "beginning": beginning}, kinds={}, ask=_chat)
        for request, beginning, where in (
            ("Who are you?", WHO, "gesso/serve/studio/welcome.js gesso/serve/openai/chat_fields.py"),
            ("How do you work?", HOW, "gesso/serve/studio/welcome.js"),
            ("What can you do?", CAN, "docs/quickstart.md"),
            ("Hello!", f"Hello! {WHO}", "docs/guides/samplers.md docs/guides/quantization.md"),
            ("Hello", f"Hello! {WHO}", "docs/guides/serving.md"),
        )
    ),
    Template(
        name="a Sudoku",
        where="docs/quickstart.md",
        shown={"puzzle": "530070000600195000098000060800060003400803001700020006060000280000419005000080079"},
        kinds={"puzzle": "puzzle"},
        ask=_sudoku,
        model="gesso-sudoku",
    ),
)  # fmt: skip
