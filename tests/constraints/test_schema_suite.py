"""The harness of the official JSON Schema Test Suite counts both directions."""

import json

from tests.schema_suite import Counts, run, table

GROUPS = [
    {
        "description": "an object",
        "schema": {
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
        "tests": [
            {"description": "in order", "data": {"a": 1, "b": "é"}, "valid": True},
            {"description": "in another order", "data": {"b": "x", "a": 1}, "valid": True},
            {"description": "of another type", "data": {"a": "1", "b": "x"}, "valid": False},
            {"description": "wrongly labelled", "data": {"a": 2, "b": "x"}, "valid": False},
        ],
    },
    {"description": "refused", "schema": {"type": "unknown"}, "tests": [{"data": 1, "valid": True}]},
    {"description": "nothing", "schema": False, "tests": [{"data": 1, "valid": False}]},
]


def test_verdicts_of_both_directions_are_counted(tmp_path):
    directory = tmp_path / "tests" / "draft7"
    directory.mkdir(parents=True)
    (directory / "properties.json").write_text(json.dumps(GROUPS))
    (directory / "format.json").write_text("[]")
    found, problems = run(tmp_path, ["draft7"])
    counts = found["draft7", "properties"]
    assert len(found) == 1
    assert (counts.schemas, counts.compiled) == (3, 2), "a contradiction without valid instances counts as compiled"
    assert (counts.invalid, counts.rejected, counts.passed) == (3, 2, 1)
    assert (counts.valid, counts.compact, counts.ordered) == (2, 1, 1)
    assert [problem.text.partition(":")[0] for problem in problems if "refused" not in problem.text] == [
        "accepted in another order of members only",
        "accepted, but invalid",
    ]


def test_the_table_has_a_row_for_all():
    rows = {"a": Counts(schemas=2, compiled=1, valid=4, dumped=3), "b": Counts(schemas=1, compiled=1)}
    last = table(rows, "keyword").splitlines()[-1]
    assert last.startswith("| all | 2 of 3 | – | 0 | 0 | 3 of 4 (75%) |")
