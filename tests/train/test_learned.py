"""Rows asked again after the training: how many are answered exactly, and which cannot be."""

import json
from dataclasses import replace

import pytest
import torch

from gesso.chat.tokenizer import Tokenizer
from gesso.train import run
from gesso.train.data import Dataset, Example
from gesso.train.learned import TRIED, try_rows
from gesso.train.recipe import DataSettings, HeldOutSettings
from tests.train.test_held_out import EOS, recipe_of


def write(path, pairs):
    rows = [{"prompt": question, "completion": answer} for question, answer in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def examples_of(path, tokenizer):
    dataset = Dataset(DataSettings(files=(str(path),), max_length=64), tokenizer, EOS)
    return [row for row in dataset.read() if isinstance(row, Example)]


@pytest.fixture(scope="module")
def tokenizer(tiny_directory):
    return Tokenizer.from_directory(tiny_directory)


def test_exact_answers_are_counted(tmp_path, tokenizer):
    rows = examples_of(write(tmp_path / "rows.jsonl", [("a? ", "one"), ("b? ", "two"), ("c? ", "three")]), tokenizer)
    learned = try_rows(torch.nn.Module(), rows, tokenizer, lambda model, prompts: ["one", " two\n", "tree"])
    assert (learned.exact, learned.tried, learned.ambiguous) == (2, 3, 0)


def test_rows_of_all_parts_of_a_large_dataset_are_tried(tmp_path, tokenizer):
    rows = examples_of(write(tmp_path / "rows.jsonl", [(f"{number}? ", "x") for number in range(100)]), tokenizer)
    asked = []
    learned = try_rows(torch.nn.Module(), rows, tokenizer, lambda _, prompts: asked.extend(prompts) or ["x"] * TRIED)
    assert (learned.exact, learned.tried, len(asked)) == (TRIED, TRIED, TRIED)
    assert tokenizer.decode(asked[-1].tokens).endswith("97? ")


def test_rows_that_share_a_question_and_not_the_answer_are_found(tmp_path, tokenizer):
    pairs = [("Draw! ", "two"), ("Draw! ", "ten"), ("Same? ", "yes"), ("Same? ", "yes"), ("c? ", "three")]
    rows = examples_of(write(tmp_path / "rows.jsonl", pairs), tokenizer)
    learned = try_rows(torch.nn.Module(), rows, tokenizer, lambda model, prompts: [""] * 5)
    assert (learned.ambiguous, learned.example) == (2, "Draw!")


def test_a_run_asks_again_what_it_trained_on_unless_rows_are_held_out(tmp_path, small):  # noqa: F811
    rows = write(tmp_path / "rows.jsonl", [(f"{number}? ", "yes") for number in range(12)])
    recipe = replace(recipe_of(tmp_path, rows, small, "all", steps=1), held_out=None)
    learned = run.train(recipe, lambda _: None, answer=lambda model, prompts: ["yes"] * len(prompts))
    assert learned is not None and (learned.exact, learned.tried) == (12, 12)
    held = replace(recipe_of(tmp_path, rows, small, "held", steps=1), held_out=HeldOutSettings(every=1))
    assert run.train(held, lambda _: None, answer=lambda model, prompts: ["yes"] * len(prompts)) is None
