"""Answers with a JSON schema or required calls are valid when they are returned, or an error says why not."""

import pytest

import gesso
from gesso import api
from gesso.constraints import validate
from gesso.engine.plan import retry_seed
from gesso.engine.request import ATTEMPTS
from gesso.infill import infill

SMALL = {"canvas_length": 24, "steps": 3, "max_new_tokens": 24}
SCHEMA = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}
HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"enum": [1, 2]}}}}}]


@pytest.fixture
def checks(monkeypatch):
    """Record the checked texts. The first `checks.wrong` of them count as invalid."""

    class Checks:
        wrong = 0
        texts: list[str] = []  # noqa: RUF012

        def __call__(self, schema, text):
            self.texts.append(text)
            return "$: odd" if len(self.texts) <= self.wrong else validate.schema_problem(schema, text)

    found = Checks()
    found.texts = []
    for module in (api, infill):
        monkeypatch.setattr(module, "schema_problem", found)
    return found


def test_every_answer_with_a_schema_is_checked(tiny, checks):
    texts = [
        tiny.generate("a", json_schema=SCHEMA, seed=1, **SMALL).text,
        tiny.chat(HELLO, json_schema=SCHEMA, seed=1, **SMALL).text,
        tiny.run([tiny.request("a", json_schema=SCHEMA, seed=2, **SMALL)])[0].text,
        list(tiny.stream("a", json_schema=SCHEMA, seed=3, **SMALL))[-1].text,
        tiny.infill("a", "b", json_schema=SCHEMA, seed=4, method="pinned", lengths=[6], canvas_length=24, steps=3).text,
    ]
    assert checks.texts == texts


def test_an_invalid_answer_is_written_again_unseen(tiny, checks):
    checks.wrong = 2
    found = tiny.generate("a", json_schema=SCHEMA, seed=5, **SMALL)
    assert found.seed == retry_seed(5, 2)
    assert checks.texts[2:] == [found.text]
    assert found.text == tiny.generate("a", json_schema=SCHEMA, seed=found.seed, **SMALL).text


@pytest.mark.parametrize("method", ["generate", "infill"])
def test_an_answer_that_stays_invalid_is_not_returned(tiny, checks, method):
    checks.wrong = 99
    with pytest.raises(gesso.ConstraintError, match=r"3 attempts: \$: odd"):
        if method == "generate":
            tiny.generate("a", json_schema=SCHEMA, **SMALL)
        else:
            options = {"method": "pinned", "lengths": [6], "canvas_length": 24, "steps": 3}
            tiny.infill("a", "b", json_schema=SCHEMA, **options)
    assert len(checks.texts) == ATTEMPTS


def test_a_stream_with_an_invalid_answer_ends_with_an_error(tiny, checks):
    checks.wrong = 99
    kinds = []
    with pytest.raises(gesso.ConstraintError, match="in a stream"):
        kinds += [event.kind for event in tiny.stream("a", json_schema=SCHEMA, **SMALL)]
    assert len(checks.texts) == 1
    assert "done" not in kinds


def test_a_truncated_answer_is_returned_as_it_is(tiny, checks):
    checks.wrong = 99
    assert tiny.generate("a", json_schema=SCHEMA, stop=",", seed=1, **SMALL).stop == ","


def test_required_calls_are_checked(tiny, monkeypatch):
    found = []

    def problem(parameters, calls, *, required):
        found.append((calls, required))
        return "odd"

    monkeypatch.setattr(api, "calls_problem", problem)
    with pytest.raises(gesso.ConstraintError, match="odd"):
        tiny.chat(HELLO, tools=TOOLS, tool_choice="required", **SMALL | {"max_new_tokens": 48})
    assert len(found) == ATTEMPTS
    assert all(calls and required for calls, required in found)


def test_warnings_of_a_request_are_in_its_result(tiny):
    from dataclasses import replace

    request = replace(tiny.request("a", seed=1, **SMALL), warnings=("x-mine was ignored",))
    assert tiny.run([request])[0].warnings == ("x-mine was ignored",)
