"""The lines that announce compilations. Nothing is compiled here: that takes minutes."""

import json

import pytest

from gesso.train.objective import Objective
from gesso.train.recipe import load
from gesso.train.run import train
from tests.train.test_trainer import write_recipe


@pytest.fixture
def announced(tmp_path, small, monkeypatch, caplog):
    """Run four steps of four rows, two of them with a longer row, and return the lines."""
    # Compiling takes minutes.
    monkeypatch.setattr(Objective, "compile_parts", lambda self: None)
    rows = tmp_path / "rows.jsonl"
    texts = ["a" * (4 if number else 40) for number in range(8)]
    rows.write_text(
        "".join(json.dumps({"prompt": f"{n}: ", "completion": text}) + "\n" for n, text in enumerate(texts))
    )

    def run(data="", **more):
        path = write_recipe(tmp_path, rows, small, steps=4, **more)
        text = path.read_text().replace('"all"', "1").replace("max_length = 512", f"max_length = 512\n{data}")
        path.write_text(text.replace("save_every", "compile = true\nsave_every"))
        train(load(path), report=lambda _: None)
        return [record.getMessage() for record in caplog.records if "compiling" in record.getMessage()]

    return run


def test_each_new_shape_is_announced_once_and_the_second_with_advice(announced):
    first, second = announced()
    lengths = {line.removeprefix("compiling to train on 4 rows of ").partition(" ")[0] for line in (first, second)}
    assert lengths == {"9", "45"}
    assert first.endswith("4 canvases of 16") and second.endswith("; a larger data.pad_to gives fewer lengths")


def test_padding_to_one_length_is_compiled_once(announced):
    assert announced("pad_to = 64") == ["compiling to train on 4 rows of 64 tokens and 4 canvases of 16"]


def test_packed_rows_and_held_out_rows_are_announced(announced, tmp_path):
    held_out = tmp_path / "held.jsonl"
    held_out.write_text('{"prompt": "1: ", "completion": "aaaaa"}\n')
    lines = announced("pack = true", extra=f'[held_out]\nevery = 4\nfiles = ["{held_out}"]\n')
    assert any("tokens of packed rows" in line for line in lines)
    assert sum(line.startswith("compiling to evaluate 1 row of") for line in lines) == 1
