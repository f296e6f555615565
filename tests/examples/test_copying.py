"""Training rows for copying and for holes in small classes: their answers follow from their prompts."""

import json
import re
from typing import Any

import pytest

from examples.python_infill.small_classes import training_rows as class_rows
from examples.structured.copying import REQUESTS, training_rows
from gesso.chat.tokenizer import FILL
from gesso.eval.python_infill import parses
from gesso.eval.structured.domains import DOMAINS
from gesso.eval.structured.words import WORDS
from gesso.eval.task import split_of

ROWS = 300


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(training_rows(ROWS, seed=5))


def request_and_value(row: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the request, the schema and the value of a row."""
    *_, question, answer = row["messages"]
    if "tools" not in row:
        request, schema = question["content"].split("\nAnswer in JSON by this schema: ")
        return request, json.loads(schema), json.loads(answer["content"])
    (call,) = answer["tool_calls"]
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in row["tools"]}
    return question["content"], schemas[call["function"]["name"]], call["function"]["arguments"]


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    return [leaf for inner in value for leaf in leaves(inner)] if isinstance(value, list) else [value]


def test_every_value_of_an_answer_is_in_its_request(rows):
    for row in rows:
        request, _, value = request_and_value(row)
        for leaf in leaves(value):
            assert isinstance(leaf, bool) or str(leaf) in request


def test_the_members_of_an_answer_are_those_of_its_schema_in_order(rows):
    for row in rows:
        _, schema, value = request_and_value(row)
        assert list(value) == list(schema["properties"]) == schema["required"]


def test_copied_values_have_many_lengths(tiny, rows):
    texts = [leaf for row in rows for leaf in leaves(request_and_value(row)[2]) if isinstance(leaf, str)]
    numbers = [leaf for row in rows for leaf in leaves(request_and_value(row)[2]) if type(leaf) is int]
    assert len({len(text) for text in texts}) > 25
    assert {len(str(number)) for number in numbers} >= {1, 2, 3, 4, 5}


def test_no_copied_row_has_a_word_of_another_split(rows):
    # As the structured task: a word belongs to a split in any list. Only names are capitalized in the lists.
    others = {word for group in ("first", "last", "city") for word in WORDS[group].split()
              if split_of(word.lower()) != "train"}  # fmt: skip
    for row in rows:
        request, _, _ = request_and_value(row)
        assert not others & set(re.findall(r"\w+", request)), request


def test_no_sentence_has_a_wording_of_another_split_of_the_structured_task():
    sentences = [says for everyday in REQUESTS for says in everyday.says]
    for domain in DOMAINS:
        for split in ("validation", "test"):
            for field in domain.fields:
                for wording in field.says[split]:
                    pattern = re.escape(wording).replace(r"\{\}", r"\{\w+\}")
                    assert [says for says in sentences if re.search(rf"(?<!\w){pattern}(?!\w)", says)] == []
            asks = [everyday.asks.lower() for everyday in REQUESTS]
            assert [
                says for says in (*map(str.lower, sentences), *asks) for ask in domain.asks[split] if ask in says
            ] == []


def test_sets_of_keys_of_sentences_belong_to_the_train_split(rows):
    names = {key for everyday in REQUESTS for field in everyday.fields.values() for key in field.keys}
    sets = [list(value) for row in rows for _, _, value in [request_and_value(row)] if names >= set(value)]
    assert len(sets) > 50
    assert {split_of(" ".join(sorted(keys))) for keys in sets} == {"train"}


def test_a_filled_class_parses():
    holes = 0
    for row in class_rows(ROWS, seed=5):
        before, after = row["prompt"], ""
        if before.startswith(FILL[0]):
            before, after = before.removeprefix(FILL[0]).removesuffix(FILL[2]).split(FILL[1])
            holes += 1
        assert row["completion"].strip()
        assert parses(before + row["completion"] + after)
    assert 0.6 < holes / ROWS < 0.9
