"""The benchmark of schemas: reading schemas, drawing texts, and judging them."""

import json
import random
from pathlib import Path

import pytest

from benchmarks import schemas
from benchmarks.random_text import accepts, random_text
from benchmarks.schema_files import Named, read_schemas
from gesso.errors import InputError

POINT = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x", "y"]}


def test_texts_of_our_sample_are_valid(capsys):
    schemas.main(["--answers", "3", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["all"]["schemas"] == 30 and len(found["subsets"]) == 4
    assert found["all"]["compiled"] > 10 and found["all"]["texts"] > 30
    assert found["all"]["invalid"] == 0, found["all"]["invalid_examples"]
    assert found["all"]["compiled"] + sum(one["schemas"] for one in found["all"]["refusals"]) == 30


def test_the_table_names_each_subset(capsys):
    schemas.main(["--answers", "1", "--limit", "1"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("configuration", "records", "tools", "trees", "all"))


def test_subsets_are_read_in_all_layouts(tmp_path):
    row = json.dumps({"json_schema": json.dumps(POINT), "unique_id": "o7"}) + "\n"
    (tmp_path / "data" / "Glaiveai2K").mkdir(parents=True)
    (tmp_path / "data" / "Glaiveai2K" / "a.json").write_text(json.dumps(POINT))
    (tmp_path / "data" / "Github_easy-00000-of-00001.jsonl").write_text(row)
    (tmp_path / "Snowplow").mkdir()
    (tmp_path / "Snowplow" / "test-00000-of-00001.jsonl").write_text(row + "\n" + row)
    found = [(one.subset, one.name) for one in read_schemas(tmp_path)]
    assert found == [("Snowplow", "o7"), ("Snowplow", "o7"), ("Github_easy", "o7"), ("Glaiveai2K", "a")]
    assert all(one.schema == POINT for one in read_schemas(tmp_path))


def test_parquet_files_are_read(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"json_schema": [json.dumps(POINT)], "unique_id": ["o1"]})
    parquet.write_table(table, tmp_path / "Kubernetes-00000-of-00001.parquet")
    assert read_schemas(tmp_path) == [Named("Kubernetes", "o1", POINT)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "expected files that end in .json"),
        ("a.json", "{", "not JSON"),
        ("a.jsonl", '{"schema": {}}\n', "row 1 has no 'json_schema'"),
    ],
)
def test_unusable_data_is_rejected_with_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_schemas(tmp_path)


def test_data_must_exist():
    with pytest.raises(InputError, match="no such file"):
        read_schemas(Path("nowhere"))


def test_random_texts_are_accepted_and_differ():
    guide = schemas.guides().guide(json_schema=POINT)
    texts = {random_text(guide, random.Random(seed)) for seed in range(20)}
    assert len(texts) > 10
    assert all(accepts(guide, text) for text in texts)
    assert not accepts(guide, '{"x": 1}')


def test_an_invalid_text_is_counted():
    outcome = schemas.outcome_of(Named("s", "point", POINT), 2, draw=lambda guide, rng: '{"x": 1, "y": "2"}')
    assert len(outcome.invalid) == 2 and '"2" is not of type "integer"' in outcome.invalid[0]


def test_a_text_that_is_left_to_validation_is_counted_as_retried():
    outcome = schemas.Outcome("s", "point", checked=1)
    schemas._judge(outcome, POINT, "{}")
    assert (outcome.retried, outcome.invalid) == (1, [])


def test_null_is_no_error_where_openapi_allows_it():
    outcome = schemas.Outcome("s", "text")
    schemas._judge(outcome, {"type": "string", "nullable": True}, "null")
    schemas._judge(outcome, {"type": "string"}, "null")
    assert len(outcome.invalid) == 1


def test_a_schema_that_the_validator_cannot_read_is_counted_as_unjudged():
    outcome = schemas.Outcome("s", "text")
    schemas._judge(outcome, {"$ref": "http://example.com/schema"}, "1")
    assert outcome.unjudged is not None and outcome.texts == 0


def test_a_schema_that_takes_too_long_is_refused():
    def endless(guide, rng):
        while True:
            pass

    outcome = schemas.outcome_of(Named("s", "point", POINT), 1, draw=endless, limit=1)
    assert "not done after 1 s" in outcome.refusal


def test_refusals_of_one_kind_are_counted_together():
    first = schemas.refusal_kind("#/properties/a/format is 'int32': at most 20,000 are allowed")
    assert first == schemas.refusal_kind("#/$defs/b/format is 'int64': at most 30,000 are allowed")
    assert "format" in first
