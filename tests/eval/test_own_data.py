"""`gesso eval --data FILE`: rows of one's own, their scores, and errors that name the line."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gesso
from gesso.errors import InputError
from gesso.eval import Item, OwnData
from gesso.eval.evaluate import evaluate
from tests.likelihood import Likelihood

Main = Callable[..., SimpleNamespace]
FEW = {"steps": 2, "max_new_tokens": 8}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    talk = [{"role": "user", "content": "Hello"}]
    return write(
        tmp_path / "my.jsonl",
        {"prompt": "one", "answer": "uno", "id": "first"},
        "",
        {"messages": talk, "answer": ["Hi", "Hello"], "note": "other keys are ignored"},
        {"prompt": "two", "answer": "dos"},
    )


def test_rows_become_items_in_their_order(rows: Path) -> None:
    first, second, third = OwnData(data=(rows,)).items("test", 100, 0)
    assert (first.name, first.prompt, first.expected) == ("first", "one", "uno")
    assert (second.name, second.expected, second.meta["answers"]) == ("my.jsonl:3", '["Hi", "Hello"]', ("Hi", "Hello"))
    assert isinstance(second.prompt, tuple) and second.prompt[0]["content"] == "Hello"
    assert third.name == "my.jsonl:4"
    assert len(list(OwnData(data=(rows, rows)).items("test", 5, 0))) == 5


@pytest.mark.parametrize(
    ("kind", "answer", "right", "wrong"),
    [
        ("exact", ["Rome", " Paris "], ["Paris", "\nRome "], ["paris", "Paris.", ""]),
        ("contains", ["Paris"], ["In Paris."], ["paris", ""]),
        ("json", ['{"a": [1, true]}', "[]"], ['{"a":[1.0,true]}', " []"], ['{"a":[1,1]}', "[[]]", "{", "", "NaN"]),
        ("python", None, ["x = 1", "def f():\n    pass\n"], ["x =", "", "  "]),
    ],
)  # fmt: skip
def test_scores(kind: str, answer: list[str] | None, right: list[str], wrong: list[str], tmp_path: Path) -> None:
    task = OwnData(data=(write(tmp_path / "a.jsonl", {"prompt": "p", "answer": answer}),), kind=kind)
    (item,) = task.items("test", 1, 0)
    assert task.scores == (kind,)
    assert [task.score(item, output) for output in right] == [{kind: 1.0}] * len(right)
    assert [task.score(item, output) for output in wrong] == [{kind: 0.0}] * len(wrong)


@pytest.mark.parametrize(
    ("kind", "row", "words"),
    [
        ("exact", "{", "not JSON"),
        ("exact", "[1]", "expected a JSON object"),
        ("exact", {"prompt": "p"}, "answer is missing"),
        ("exact", {"answer": "a"}, "either prompt or messages; the row has answer"),
        ("exact", {"prompt": "p", "messages": [], "answer": "a"}, "either prompt or messages"),
        ("exact", {"prompt": "", "answer": "a"}, "prompt: expected a text that is not empty"),
        ("exact", {"prompt": "p", "answer": 5}, "answer: expected a text"),
        ("contains", {"prompt": "p", "answer": [""]}, "answer: expected a text that is not empty"),
        ("json", {"prompt": "p", "answer": "{"}, "is not JSON"),
        ("exact", {"messages": [{"role": "nobody", "content": ""}], "answer": "a"}, r"messages\[0\].role"),
    ],
)
def test_a_bad_row_is_rejected_with_file_and_line(kind: str, row: Any, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "bad.jsonl", {"prompt": "p", "answer": "1"}, row)
    with pytest.raises(InputError, match=rf"bad.jsonl, line 2: .*{words}"):
        list(OwnData(data=(path,), kind=kind).items("test", 10, 0))


def test_likelihood_is_the_mean_log_probability_of_the_likeliest_answer(tiny: gesso.Gesso, rows: Path) -> None:
    task = OwnData(data=(rows,), kind="likelihood")
    items = list(task.items("test", 10, 0))
    found = evaluate(tiny, task, items, batch=2)
    assert tiny.engine.busy is False
    for item, outcome in zip(items, found.outcomes, strict=True):
        prompt = (
            tiny.tokenizer.encode(item.prompt)
            if isinstance(item.prompt, str)
            else tiny.tokenizer.chat(item.prompt).tokens
        )
        reference = Likelihood(tiny.model, prompt)
        texts = [tiny.tokenizer.encode(answer, bos=False) for answer in item.meta["answers"]]
        means = [reference.of(text) / len(text) for text in texts]
        assert outcome.scores == {"log_probability": pytest.approx(max(means), rel=1e-4)}
        assert outcome.denoising_steps == 0 and outcome.output == ""
    mean = math.fsum(outcome.scores["log_probability"] for outcome in found.outcomes) / 3
    estimate = found.scores["log_probability"]
    assert estimate.mean == pytest.approx(mean)
    assert estimate.low is not None and estimate.high is not None and estimate.low < mean < estimate.high < 0
    lines = found.summary().splitlines()
    assert lines[0] == "my.jsonl, 3 items" and len(lines) == 2
    assert lines[1].split()[:2] == ["log-probability", f"{mean:.1f}"]


def test_an_answer_that_cannot_be_read_ends_a_likelihood_evaluation(tiny: gesso.Gesso) -> None:
    long = Item(name="my.jsonl:1", prompt="p", expected="", meta={"answers": ("x" * 9000,)})
    with pytest.raises(InputError, match="my.jsonl:1: context overflow"):
        evaluate(tiny, OwnData(data=(), kind="likelihood"), [long])


def test_running_out_of_memory_ends_an_evaluation(tiny: gesso.Gesso, rows: Path) -> None:
    class Failing:
        def __call__(self, *_: Any, **__: Any) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    task = OwnData(data=(rows,))
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(tiny, task, task.items("test", 3, 0), stopping=Failing(), **FEW)
    assert not tiny.engine.busy


# --- command line -----------------------------------------------------------------------------------------------------


def test_own_rows_on_the_command_line_have_the_usual_output(main: Main, tiny_directory: Path, rows: Path) -> None:
    command = ["eval", "--data", str(rows), "-m", str(tiny_directory), "--steps", "2", "--max-new-tokens", "8"]
    done = main(*command)
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["my.jsonl,", "exact", "denoising", "tokens"]
    (found,) = json.loads(main(*command, "--score", "contains", "--count", "2", "--json").out)
    assert (found["task"], found["count"], found["data"]["count"]) == ("my.jsonl", 2, 2)
    assert found["scores"]["contains"]["low"] is not None
    assert [item["name"] for item in found["items"]] == ["first", "my.jsonl:3"]
    assert found["settings"]["max_new_tokens"] == 8
    (likely,) = json.loads(main(*command, "--score", "likelihood", "--json").out)
    assert likely["scores"]["log_probability"]["mean"] < 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give a task"),
        (["--data", "ROWS", "--score", "best"], "unknown score 'best'"),
        (["--data", "ROWS", "--split", "train"], "one split, test"),
        (["--data", "ROWS", "--clues", "30"], "--clues applies to sudoku"),
        (["--data", "ROWS", "--score", "likelihood", "--plot", "x.svg"], "--plot"),
        (["--data", "ROWS.absent"], "cannot be read"),
        (["sudoku", "--score", "exact"], "--score applies to rows of your own"),
    ],
)
def test_unusable_options_are_rejected_before_loading(
    main: Main, rows: Path, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GESSO_MODEL", "/nowhere")
    done = main("eval", *(word.replace("ROWS", str(rows)) for word in arguments))
    assert done.code == 2 and words in done.err
