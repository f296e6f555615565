"""JSON schemas on the command line: checked answers, options and warnings."""

import json
from pathlib import Path

import pytest

SMALL = ("--max-new-tokens", "24", "--set", "canvas_length=24", "--steps", "3", "--seed", "1")
SCHEMA = {"type": "boolean", "x-mine": 1}


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    return str(path)


def test_ignored_keywords_are_reported_on_stderr_or_in_json(main, schema):
    done = main("generate", "a", "--json-schema", schema, *SMALL)
    assert done.out.strip() in ("true", "false")
    assert "x-mine" in done.err
    assert "x-mine" in json.loads(main("generate", "a", "--json-schema", schema, "--json", *SMALL).out)["warnings"][0]


def test_an_answer_that_stays_invalid_is_exit_code_1_without_text(main, tmp_path):
    schema = tmp_path / "schema.json"  # only the check of a finished answer compares items
    empty = {"type": "string", "maxLength": 0}
    schema.write_text(json.dumps({"type": "array", "items": empty, "minItems": 2, "maxItems": 2, "uniqueItems": True}))
    for command in (["generate", "a"], ["chat"]):
        done = main(*command, "--json-schema", str(schema), "--schema-option", "open", *SMALL, stdin="Hello\n")
        assert (done.code, done.out) == (1, ""), done
        assert "3 attempts: " in done.err and "unique" in done.err


def test_schema_options_are_checked_before_loading(main, schema):
    done = main("generate", "a", "--json-schema", schema, "--schema-option", "any-order", *SMALL)
    assert done.code == 0
    wrong = main("generate", "a", "--json-schema", schema, "--schema-option", "odd", "-m", "/nowhere")
    assert (wrong.code, wrong.out) == (2, "")
    assert "any-order, whitespace, open" in wrong.err
    assert "needs --json-schema" in main("generate", "a", "--schema-option", "open", "-m", "/nowhere").err
