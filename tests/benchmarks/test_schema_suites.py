"""The suites of JSON schemas: our sample passes, and both directions are counted."""

import json

import pytest

from benchmarks import schema_suites
from benchmarks.schema_suites import (
    ACCEPTED,
    CHECKED,
    LET_THROUGH,
    MODES,
    REFUSED,
    SAMPLE,
    STOPPED,
    UNCHECKED,
    Case,
    clause,
    maskbench,
    official,
    outcome_of,
    reasons,
    table,
)

ALL = MODES["all options"]
DEFAULT = MODES["default options"]
PAIR = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def case(schema, *instances):
    return Case(subset="s", name="n", schema=schema, instances=instances)


@pytest.mark.parametrize("sample", list(maskbench(SAMPLE, None, 0)), ids=lambda one: one.name)
def test_instances_of_our_sample_are_accepted_if_and_only_if_they_are_valid(sample):
    outcome = outcome_of(sample, ALL)
    assert outcome.refusal is None and outcome.problems == []
    assert outcome.verdicts.total() == len(sample.instances)


def test_the_default_options_refuse_more_and_let_nothing_through():
    outcomes = [outcome_of(sample, DEFAULT) for sample in maskbench(SAMPLE, None, 0)]
    assert {problem["verdict"] for outcome in outcomes for problem in outcome.problems} == {REFUSED}


def test_verdicts_of_both_directions_are_counted(monkeypatch):
    instances = (({"a": 1, "b": "é"}, True), ({"b": "x", "a": 1}, True), ({"a": "1", "b": "x"}, False))
    mislabelled = ({"a": 2, "b": "x"}, False)
    outcome = outcome_of(case(PAIR, *instances, mislabelled), DEFAULT)
    assert outcome.verdicts == {ACCEPTED: 1, REFUSED: 1, STOPPED: 1, LET_THROUGH: 1}
    assert outcome_of(case({"uniqueItems": True}, ([1, 1], False)), ALL).verdicts == {CHECKED: 1}
    # The check has no known false alarm.
    monkeypatch.setattr(schema_suites, "schema_problem", lambda schema, text: "$: wrong")
    assert outcome_of(case(True, (1, True)), ALL).verdicts == {UNCHECKED: 1}


def test_a_schema_that_no_value_satisfies_is_rightly_refused_only_if_it_has_no_valid_instance():
    outcome = outcome_of(case(False, (1, False)), ALL)
    assert outcome.refusal is None and outcome.verdicts == {STOPPED: 1}
    assert outcome_of(case(False, (1, True)), ALL).refusal is not None


def test_whole_numbers_are_spelled_without_a_point():
    assert outcome_of(case({"type": "integer"}, (19.0, True)), DEFAULT).verdicts == {ACCEPTED: 1}


def test_a_refusal_names_the_keyword_that_causes_it():
    schema = {"type": "object", "properties": {"pattern": {"type": "string", "pattern": "^a$"}}}
    assert clause(schema, ALL, '{"pattern": "b"}') == "pattern"


def test_files_of_the_official_suite_are_grouped_by_draft_and_kind(tmp_path):
    group = {"description": "numbers", "schema": {"minimum": 1}, "tests": [{"data": 1, "valid": True}]}
    for kind in (".", "optional", "optional/format"):
        directory = tmp_path / "tests" / "draft7" / kind
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "minimum.json").write_text(json.dumps([group]))
    cases = list(official(tmp_path))
    assert [one.subset for one in cases] == ["required, draft7", "optional, draft7", "format, draft7"]
    assert cases[0].schema["$schema"].endswith("draft-07/schema#") and cases[0].instances == ((1, True),)


def test_the_same_seed_draws_the_same_schemas(tmp_path):
    for number in range(30):
        (tmp_path / f"Set---{number}.json").write_text(json.dumps({"schema": {"const": number}}))
    drawn = [[one.name for one in maskbench(tmp_path, 4, seed)] for seed in (1, 1, 2)]
    assert len(drawn[0]) == 4 and drawn[0] == drawn[1] != drawn[2]


def test_the_table_has_a_row_for_all_and_reasons_are_counted():
    outcomes = [outcome_of(case({"type": "wrong"}, (1, True)), ALL), outcome_of(case(True, (1, True)), ALL)]
    outcomes[1].subset = "t"
    assert table(outcomes).splitlines()[-1].startswith("| all | 2 | 1 | 1 | 0 | 0 | 0 | 0 | 0 |")
    assert reasons(outcomes).startswith("refused schemas, 1: type is 'wrong'")
