"""The examples that users click and type are right with fresh values, and show what the templates say."""

import json
import re

import pytest

from examples.python_infill.small_classes import training_rows as class_rows
from examples.rubric.__main__ import Judged, Sample, judge, misses, samples, table
from examples.rubric.questions import Call, Chat, Choice, Continuation, Hole, Json, Puzzle
from examples.rubric.templates import TEMPLATES
from examples.structured.chat import training_rows as chat_rows
from examples.structured.copying import training_rows as copying_rows
from examples.structured.rows import training_rows as structured_rows
from tests.docs.pages import ROOT

FILLINGS = 2
FILLABLE = [template for template in TEMPLATES if template.kinds]


def names(value: object) -> set[str]:
    return set(re.findall(r"[A-Z][a-z]{3,}", value)) if isinstance(value, str) else set()


def test_a_sample_of_the_examples_is_right():
    judged = judge(list(samples(fillings=FILLINGS, seeds=1, shown=2)), "gesso-mini", batch=16)
    wrong = [f"{TEMPLATES[one.sample.template].name}: {one.answer}" for one in judged if not one.right]
    assert len(wrong) <= 0.08 * len(judged), wrong


@pytest.mark.parametrize("template", FILLABLE, ids=[template.name for template in FILLABLE])
def test_fillings_are_fresh_and_the_same_on_every_machine(template):
    fillings = [template.fresh(number) for number in range(20)]
    assert fillings == [template.fresh(number) for number in range(20)]
    assert all(values.keys() == template.shown.keys() for values in fillings)
    assert len({json.dumps(values) for values in fillings}) > 10


def test_no_training_row_has_a_name_of_a_filling():
    fresh = {name for template in FILLABLE for number in range(20)
             for value in template.fresh(number).values() for name in names(value)}  # fmt: skip
    assert len(fresh) > 40
    # Words that join names into venues and titles belong to no split, as in the structured task.
    joining = {"Cafe", "Casa", "Grill"}
    for rows in (copying_rows(200, 0), structured_rows(200, 1), chat_rows(200, 1), class_rows(200, 0)):
        seen = {name for row in rows for name in names(json.dumps(row))}
        assert not fresh & seen - joining


@pytest.mark.parametrize("template", TEMPLATES, ids=[template.name for template in TEMPLATES])
def test_the_shown_values_are_those_of_the_files(template):
    for name in template.where.split():
        content = (ROOT / name).read_text(encoding="utf-8")
        question = template.ask(template.shown)
        if isinstance(question, Json | Call | Chat):
            assert question.request in content
        if isinstance(question, Hole):
            assert "self.x = x" in content or "point.txt" in content
        if isinstance(question, Puzzle):
            assert question.puzzle in content


def test_neither_the_studio_nor_the_help_fixes_a_seed():
    sources = [*(ROOT / "gesso/serve/studio").glob("*.js"), *(ROOT / "gesso/cli").glob("*.py")]
    fixed = re.compile(r"""["']?seed["']?\s*[:=]\s*\d|--seed\s+\d""")
    shown = [path for path in sources if path.name != "demo.js"]  # a recorded run, which says so
    assert [path.name for path in shown if fixed.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("question", "right", "wrong"),
    [
        (Json(request="", schema={}, value={"a": 2}), '{"a":2}', ['{"a":22}', '{"a":"2"}', '{"a":2', '{"a":2,"b":1}']),
        (Call(request="", tools=[], name="f", arguments={"a": "x"}), '{"name": "f", "arguments": {"a": "x"}}',
         ['{"name": "g", "arguments": {"a": "x"}}', '["text", []]']),
        (Chat(request="", beginning="Hello! I"), "Hello! I am", ["Hello!", ""]),
        (Hole(before="def f(self, y):\n    ", after="\n", missing="self.y = y"), "self.y  = y  # set",
         ["self.y = y\n    self.y = y", "self.x = y", "", "self.y ="]),
        (Continuation(prompt="", beginning="self.x = x"), "    self.x = x\n    self.y", ["self.x = xx", "self.x"]),
        (Choice(prompt="", choices=["a", "b"], right="a"), "a", ["b", ""]),
    ],
)  # fmt: skip
def test_an_answer_is_judged_by_its_values(question, right, wrong):
    assert question.is_right(right)
    assert [answer for answer in wrong if question.is_right(answer)] == []


def test_the_report_names_each_example_that_falls_short():
    def judged(template: int, filling: int | None, rights: list[bool]) -> list[Judged]:
        return [Judged(sample=Sample(template, filling, seed), answer="", right=right)
                for seed, right in enumerate(rights)]  # fmt: skip

    good = judged(0, 0, [True] * 20) + judged(0, None, [True] * 20)
    assert list(misses(good)) == []
    bad = good + judged(1, 0, [True] * 8 + [False] * 2) + judged(2, None, [True] * 9 + [False])
    short = list(misses(bad))
    assert [line.split(":")[0] for line in short] == [TEMPLATES[1].name, TEMPLATES[2].name]
    assert "| 8 of 10 |" in "\n".join(table(bad))
