"""The structured task: separate splits, and scores that follow the schema."""

import json
import re

import pytest

from gesso import InputError
from gesso.chat.messages import SCHEMA_INSTRUCTION
from gesso.eval import Structured
from gesso.eval.evaluate import evaluate
from gesso.eval.structured.domains import DOMAINS, FRAMES, SWITCHES, WRAPPERS
from gesso.eval.structured.requests import compact
from gesso.eval.structured.task import satisfies
from gesso.eval.structured.words import WORDS, known
from gesso.eval.task import SPLITS, Item

TASK = Structured()
# Words that join values and belong to no split.
GLUE = """the and with ltd works sons cafe casa grill street road lane avenue com org txt csv png pdf soup pie salad
    stew baked cake does not open too slow shows nothing crashes missing size limit mode rate true false"""


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[Item]]:
    return {split: list(TASK.items(split, 800 if split == "train" else 400, seed=2)) for split in SPLITS}


def schema_of(item: Item) -> dict:
    if "schema" in item.meta:
        return item.meta["schema"]
    return next(t["function"]["parameters"] for t in item.meta["tools"] if t["function"]["name"] == item.meta["call"])


def leaves(schema: dict, value: dict):
    """Yield (schema, value) of every field."""
    for key, inner in schema["properties"].items():
        if inner["type"] == "object":
            yield from leaves(inner, value[key])
        else:
            yield inner, value[key]


def keys(schema: dict) -> frozenset[str]:
    inner = [keys(one) if one["type"] == "object" else {key} for key, one in schema["properties"].items()]
    return frozenset().union(*inner)


def words(item: Item) -> set[str]:
    """Return the words of copied values. Values of an enum are in the schema."""
    found = [value for schema, value in leaves(schema_of(item), item.meta["value"]) if "enum" not in schema]
    return {word for word in re.findall("[a-z]{3,}", str(found).lower()) if word not in GLUE.split()}


# --- splits ---------------------------------------------------------------------------------------------------------


def test_splits_share_no_wordings_words_or_sets_of_keys(drawn):
    spoken = [*(d.asks for d in DOMAINS), *(f.says for d in DOMAINS for f in d.fields), FRAMES, SWITCHES, WRAPPERS]
    for of in (
        lambda split: {part.strip() for one in spoken for text in one[split] for part in text.split("~")},
        lambda split: {word.lower() for group in WORDS for word in known(group, split)},
        lambda split: set().union(*map(words, drawn[split])),
        lambda split: {keys(schema_of(item)) for item in drawn[split]},
    ):
        train, validation, test = map(of, SPLITS)
        assert min(map(len, (train, validation, test))) > 40
        assert not train & validation
        assert not train & test
        assert not validation & test


def test_every_field_has_wordings_in_every_split_and_unique_names():
    for domain in DOMAINS:
        names = [key for field in domain.fields for key in field.keys] + list(domain.nest)
        assert len(names) == len(set(names)), domain.name
        assert set(domain.nested) <= {field.keys[0] for field in domain.fields}
        assert len(domain.asks["train"]) * len(WRAPPERS["train"]) >= 8
        for field in domain.fields:
            for text in (text for split in SPLITS for text in field.says[split]):
                slots = (0, 1) if field.kind == "bool" else (1, 0)
                assert (text.count("{}"), text.count("~")) == slots, (domain.name, text)
    tools = [name for domain in DOMAINS for name in domain.tools]
    assert len(tools) == len(set(tools))


def test_the_request_contains_every_value_and_the_schema_every_key(drawn):
    kinds = set()
    for item in (item for items in drawn.values() for item in items):
        request, _, written = item.prompt[0]["content"].partition(f"\n{SCHEMA_INSTRUCTION}")
        schema = schema_of(item)
        assert written == ("" if "tools" in item.meta else compact(schema))
        assert list(schema["properties"]) == schema["required"] == list(item.meta["value"])
        for inner, value in leaves(schema, item.meta["value"]):
            kinds.add("enum" if "enum" in inner else inner["type"])
            if inner["type"] != "boolean":
                assert all(str(one) in request for one in (value if isinstance(value, list) else [value]))
        kinds.update(one["type"] for one in schema["properties"].values())
    assert kinds == {"string", "integer", "number", "boolean", "enum", "array", "object"}
    test = drawn["test"]
    assert 0.3 < sum("tools" in item.meta for item in test) / len(test) < 0.6
    assert {len(item.meta["tools"]) for item in test if "tools" in item.meta} == {1, 2, 3}


def test_same_seed_same_items():
    assert list(TASK.items("test", 20, seed=1)) == list(TASK.items("test", 30, seed=1))[:20]
    assert list(TASK.items("test", 20, seed=1)) != list(TASK.items("test", 20, seed=2))
    with pytest.raises(InputError, match="expected train"):
        TASK.items("dev", 1, seed=0)


# --- scores ---------------------------------------------------------------------------------------------------------


def test_the_expected_answer_scores_one_in_any_order_and_spacing(drawn):
    for item in drawn["test"]:
        assert TASK.score(item, item.expected) == {"fields": 1, "valid": 1, "share": 1}
        if "schema" in item.meta:
            turned = dict(reversed(item.meta["value"].items()))
            assert TASK.score(item, json.dumps(turned, indent=1) + "\n") == {"fields": 1, "valid": 1, "share": 1}


def test_a_malformed_answer_scores_zero(drawn):
    for item in drawn["test"][:40]:
        others = [
            item.expected + item.expected,
            item.expected.removesuffix("<tool_call|>")[:-1],
            "Sure! " + item.expected,
        ]
        for text in (
            "",
            "no idea",
            "null",
            "[" * 9000,
            "{}{",
            '{"a":NaN}',
            "<|tool_call>",
            "<|tool_call>call:x{}",
            *others,
        ):
            scores = TASK.score(item, text)
            assert (scores["fields"], scores["valid"], scores["share"]) == (0, 0, 0), (item, text)


ORDER = {
    "type": "object",
    "properties": {
        "qty": {"type": "integer"},
        "color": {"type": "string", "enum": ["red", "blue"]},
        "rush": {"type": "boolean"},
        "to": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    "required": ["qty", "color", "rush", "to"],
}
VALUE = {"qty": 1, "color": "red", "rush": True, "to": {"city": "Rome"}}
CHANGES = [
    ({}, (1, 1, 1)),
    ({"qty": 2}, (0, 1, 3 / 4)),
    ({"qty": "1"}, (0, 0, 3 / 4)),
    ({"qty": True}, (0, 0, 3 / 4)),  # True == 1 in Python
    ({"rush": 1}, (0, 0, 3 / 4)),
    ({"color": "green"}, (0, 0, 3 / 4)),
    ({"color": "blue", "qty": 3}, (0, 1, 2 / 4)),
    ({"to": "Rome"}, (0, 0, 3 / 5)),
    ({"to": {"city": "Roma"}}, (0, 1, 3 / 4)),
    ({"more": 1}, (0, 1, 4 / 5)),
]


@pytest.mark.parametrize(("change", "scores"), CHANGES)
def test_scores_count_correct_fields(change, scores):
    answer = {**VALUE, **change}
    said = Item(name="", prompt="", expected=compact(VALUE), meta={"schema": ORDER, "value": VALUE})
    assert tuple(TASK.score(said, compact(answer)).values()) == pytest.approx(scores)
    tools = [{"type": "function", "function": {"name": name, "parameters": ORDER}} for name in ("buy", "sell")]
    called = Item(name="", prompt="", expected="", meta={"tools": tools, "call": "buy", "value": VALUE})

    def call(name: str) -> str:
        return f"<|tool_call>call:{name}{compact(answer)}<tool_call|>"

    assert tuple(TASK.score(called, call("buy")).values()) == pytest.approx(scores)
    assert tuple(TASK.score(called, call("sell")).values()) == (0, scores[1], 0)
    assert tuple(TASK.score(called, call("steal")).values()) == (0, 0, 0)


def test_missing_and_duplicate_keys_are_invalid():
    item = Item(name="", prompt="", expected="", meta={"schema": ORDER, "value": VALUE})
    assert TASK.score(item, compact({k: VALUE[k] for k in VALUE if k != "qty"})) == {
        "fields": 0,
        "valid": 0,
        "share": 0.75,
    }
    assert TASK.score(item, '{"qty":2,' + compact(VALUE)[1:])["valid"] == 0


def test_the_validator_covers_every_keyword_of_generated_schemas(drawn):
    def check(schema):
        allowed = {"object": {"properties", "required"}, "array": {"items"}, "string": {"enum"}}
        assert schema.keys() - {"type"} <= allowed.get(schema["type"], set())
        for inner in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else ())):
            check(inner)

    for item in drawn["test"]:
        check(schema_of(item))
        assert satisfies(item.meta["value"], schema_of(item))
    assert satisfies(2.0, {"type": "integer"})  # by JSON Schema
    assert not satisfies(2.5, {"type": "integer"})
    assert not satisfies(None, {"type": "number"})
    assert not satisfies(["a", 1], {"type": "array", "items": {"type": "string"}})


# --- evaluation -----------------------------------------------------------------------------------------------------


def test_an_evaluation_passes_tools_and_scores_the_call(tiny, drawn, monkeypatch):
    """Pins make an untrained model write the answer, whose special tokens must reach the scorer."""
    items = [next(item for item in drawn["test"] if ("tools" in item.meta) is tools) for tools in (True, False)]
    asked = []
    chat_request = tiny.chat_request

    def with_pins(messages, **options):
        expected = next(item.expected for item in items if item.prompt == messages)
        pins = dict(enumerate([*tiny.tokenizer.encode(expected, bos=False), 106]))
        request = chat_request(messages, pins=pins, **options)
        asked.append(list(request.prompt))
        return request

    def ids(item):
        return tiny.tokenizer.chat(item.prompt, tools=item.meta.get("tools")).tokens

    monkeypatch.setattr(tiny, "chat_request", with_pins)  # an evaluation gives no pins
    found = evaluate(tiny, TASK, items, steps=1, max_new_tokens=256)
    assert asked == [ids(item) for item in items]
    assert "declaration:" in tiny.decode(asked[0])
    assert [outcome.output for outcome in found.outcomes] == [item.expected for item in items]
    assert [outcome.scores["fields"] for outcome in found.outcomes] == [1, 1]
