"""Sudoku examples made as training asks for them: what a tokenizer makes of the same grids, any slice by itself."""

from itertools import islice

import pytest

from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.eval.run import source
from gesso.eval.sudoku import spaced
from gesso.eval.sudoku_bank import build
from gesso.eval.sudoku_grid import is_valid
from gesso.eval.sudoku_source import SudokuSource
from gesso.train.data import DataSettings
from gesso.train.vocabulary import learn
from tests.tiny import tokenizer_json

EOS = 1
WORDS = "".join(chr(97 + i) + chr(97 + j) + chr(97 + k) + " " for i in range(26) for j in range(26) for k in range(9))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    (directory / "tokenizer.json").write_text(learn([WORDS, "0 1 2 3 4 5 6 7 8 9\n"], size=600))
    return Tokenizer.from_directory(directory)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    bank = tmp_path_factory.mktemp("bank") / "bank.npz"
    build(bank, grids=2, sparse=0, seed=0)
    return DataSettings(files=(str(bank),), max_length=164, task="sudoku")


def take(found: SudokuSource, count: int, start: int = 0, rank: int = 0, world: int = 1, stride: int = 1):
    return list(islice(found.batches(8, start, rank, world, stride=stride, canvas_lengths=(82,)), count))


def test_an_example_is_what_the_tokenizer_makes_of_puzzle_and_solution(settings, tokenizer):
    for example in take(SudokuSource(settings, tokenizer, EOS), 1)[0]:
        ((start, end),) = example.spans
        puzzle, solution = (
            "".join(tokenizer.decode(part).split()) for part in (example.tokens[:start], example.tokens[start:])
        )
        assert is_valid(solution)
        assert all(clue in ("0", digit) for clue, digit in zip(puzzle, solution, strict=True)) and "0" in puzzle
        response = tokenizer.encode(spaced(solution), bos=False)
        assert list(example.tokens) == [*tokenizer.encode(spaced(puzzle)), *response, EOS]
        assert (start, end) == (82, 164)


def test_any_slice_of_the_batches_can_be_made_by_itself(settings, tokenizer):
    found = SudokuSource(settings, tokenizer, EOS)
    whole = take(found, 6)
    assert len({example.tokens for batch in whole for example in batch}) == 48, "no two alike"
    assert take(found, 2, start=1, stride=3) == [whole[1], whole[4]]
    halves = [take(found, 1, start=2, rank=rank, world=2)[0] for rank in range(2)]
    assert halves[0] + halves[1] == whole[2]


def test_a_tokenizer_that_needs_more_than_a_token_a_cell_is_refused(settings, tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    with pytest.raises(InputError, match="a cell must be one"):
        SudokuSource(settings, Tokenizer.from_directory(tmp_path), EOS)


def test_only_a_task_that_makes_examples_is_one_to_train_from(settings):
    assert source(DataSettings(files=("a.jsonl",), max_length=9)) is None
    with pytest.raises(InputError, match="python_infill"):
        source(DataSettings(files=("a",), max_length=9, task="python_infill"))
    with pytest.raises(InputError, match="infill must be left out"):
        DataSettings(files=("a",), max_length=9, task="sudoku", infill=0.5)
