"""Training rows of the examples, written as `gesso train` reads them."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from examples import rows
from examples.structured.rows import training_rows as structured_rows
from examples.sudoku.rows import training_rows
from gesso.chat.answer import parse
from gesso.chat.calls import ToolCall
from gesso.errors import InputError
from gesso.eval.sudoku.grid import is_valid, kinship, parse_puzzle
from gesso.eval.task import split_of
from gesso.train.data import Dataset
from gesso.train.recipe import DataSettings
from gesso.train.rows import tokenise


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.jsonl.xz", "rows.jsonl.zst"])
def test_training_reads_the_written_rows(tiny, tmp_path: Path, name: str):
    out = tmp_path / name
    rows.main(["sudoku", "--count", "20", "--seed", "3", "--out", str(out)])
    assert [path.name for path in tmp_path.iterdir()] == [name]
    dataset = Dataset(DataSettings(files=(str(out),), max_length=512), tiny.tokenizer, eos=1)
    assert (dataset.good, dataset.rejected) == (20, [])
    for example, row in zip(dataset.read(), training_rows(20, 3), strict=True):
        assert tiny.tokenizer.decode(example.tokens) == row["prompt"] + row["completion"]
        assert is_valid(row["completion"].replace(" ", ""))
    if name.endswith(".gz"):
        assert out.read_bytes()[4:8] == bytes(4), "no time stamp: the same rows give the same bytes"


@pytest.mark.parametrize("task", rows.TASKS)
def test_rows_go_to_stdout_without_a_file(capsys, task: str):
    rows.main([task, "--count", "3"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == json.loads(json.dumps(list(rows.TASKS[task](3, 0))))


def test_an_existing_file_is_replaced_only_with_force(tmp_path: Path):
    out = tmp_path / "rows.jsonl"
    out.write_text("mine\n")
    with pytest.raises(SystemExit, match="--force"):
        rows.main(["sudoku", "--count", "1", "--out", str(out)])
    assert out.read_text() == "mine\n"
    rows.main(["sudoku", "--count", "1", "--out", str(out), "--force"])
    assert json.loads(out.read_text())["prompt"]


def test_a_failed_write_keeps_the_existing_file(tmp_path: Path):
    def failing(count: int) -> Any:
        yield from ({"prompt": "a", "completion": "b"} for _ in range(count))
        raise InputError("no more rows")

    out = tmp_path / "rows.jsonl.gz"
    rows.write_rows([{"text": "a"}, {"text": "b"}], out)
    before = out.read_bytes()
    assert gzip.decompress(before).count(b"\n") == 2
    with pytest.raises(InputError, match="no more rows"):
        rows.write_rows(failing(3), out, force=True)
    assert out.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("out", "reason"),
    [("rows.json", ".jsonl.zst"), ("absent/rows.jsonl", "no directory"), ("d.jsonl", "already exists")],
)
def test_an_unsuitable_path_is_rejected(tmp_path: Path, out: str, reason: str):
    (tmp_path / "d.jsonl").mkdir()
    with pytest.raises(InputError, match=reason):
        rows.write_rows([], tmp_path / out, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["d.jsonl"]


def test_without_zstandard_the_error_names_the_extra(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InputError, match=r"pip install 'gesso-lm\[train\]'"):
        rows.write_rows([], tmp_path / "rows.jsonl.zst")
    assert list(tmp_path.iterdir()) == []


# --- sudoku ---------------------------------------------------------------------------------------------------------


def bare(text: str) -> str:
    return text.replace(" ", "")


def test_sudoku_rows_are_distinct_puzzles_with_their_solutions():
    found = list(training_rows(512, seed=0))
    assert len({row["prompt"] for row in found}) == 512
    for row in found[::40]:
        assert parse_puzzle(row["prompt"]) == (bare(row["prompt"]), bare(row["completion"]))
    assert {81 - bare(row["prompt"]).count("0") for row in found} == set(range(30, 37))
    assert all(len(text.split(" ")) == 81 for row in found for text in row.values())


def test_sudoku_rows_have_grids_of_the_train_split_only():
    kin = {kinship(bare(row["completion"])) for row in training_rows(300, seed=3)}  # two grids and their symmetries
    assert len(kin) == 2 and {split_of(one) for one in kin} == {"train"}


# --- structured -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def structured() -> list[dict[str, Any]]:
    return list(structured_rows(300, seed=5))


@pytest.mark.parametrize("task", rows.TASKS)
def test_a_larger_count_only_adds_rows(task: str):
    assert list(rows.TASKS[task](5, 1)) == list(rows.TASKS[task](9, 1))[:5]


def test_the_learnt_span_of_every_structured_row_is_its_answer(tiny, structured):
    kinds = set()
    for row in json.loads(json.dumps(structured)):
        tokens, spans, context_only = tokenise(row, tiny.tokenizer, 1)
        (start, end), message = spans[0], row["messages"][-1]
        written = tiny.decode(tokens[start:end], special=True)
        assert (len(spans), context_only, end) == (1, 0, len(tokens))
        assert written.endswith("<turn|>")
        # The tokens before the span are the prompt of an evaluation.
        assert tokens[:start] == tiny.tokenizer.chat(row["messages"][:-1], tools=row.get("tools")).tokens
        answer = parse(written)
        calls = [call["function"] for call in message.get("tool_calls", ())]
        assert answer.tool_calls == tuple(ToolCall(call["name"], call["arguments"]) for call in calls)
        assert (answer.text, answer.malformed, answer.complete) == (message["content"], (), True)
        kinds.add(("tools" in row, bool(calls), message["content"].startswith("{")))
    assert kinds == {(True, True, False), (False, False, True), (False, False, False), (True, False, False)}


def test_structured_rows_are_short_enough_for_a_small_model(tiny, structured):
    # A vocabulary of 4,096 learnt from this text has at least four characters per token; `<|"|>` is always one token.
    lengths = [len(tokenise(row, tiny.tokenizer, 1)[0]) for row in structured]
    assert max(lengths) < 1150
    assert sorted(lengths)[len(lengths) // 2] < 600
