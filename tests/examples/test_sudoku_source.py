"""Sudoku examples generated during training."""

from itertools import islice

import pytest

from examples.mini.vocabulary import learn
from examples.sudoku.bank import build
from examples.sudoku.source import EasySudokuSource, SudokuSource
from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.eval.sudoku.grid import is_valid
from gesso.eval.sudoku.task import spaced
from gesso.train.recipe import DataSettings
from gesso.train.source import find_source
from tests.tiny import tokenizer_json

EOS = 1
NAME = "examples.sudoku.source:SudokuSource"
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
    return DataSettings(files=(str(bank),), max_length=164, source=NAME)


def take(found: SudokuSource, count: int, start: int = 0, rank: int = 0, world: int = 1, stride: int = 1):
    return list(islice(found.batches(8, start, rank, world, stride=stride, canvas_lengths=(82,)), count))


def test_an_example_has_the_tokens_of_puzzle_and_solution(settings, tokenizer):
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


def test_any_slice_of_the_batches_can_be_generated_on_its_own(settings, tokenizer):
    found = SudokuSource(settings, tokenizer, EOS)
    whole = take(found, 6)
    assert len({example.tokens for batch in whole for example in batch}) == 48, "no two alike"
    assert take(found, 2, start=1, stride=3) == [whole[1], whole[4]]
    halves = [take(found, 1, start=2, rank=rank, world=2)[0] for rank in range(2)]
    assert halves[0] + halves[1] == whole[2]


def test_easy_puzzles_have_30_to_36_clues(settings, tokenizer):
    (batch,) = take(EasySudokuSource(settings, tokenizer, EOS), 1)
    puzzles = [tokenizer.decode(example.tokens[: example.spans[0][0]]).split() for example in batch]
    assert all(30 <= sum(cell != "0" for cell in puzzle[-81:]) <= 36 for puzzle in puzzles)


def test_a_tokenizer_with_several_tokens_per_cell_is_rejected(settings, tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    with pytest.raises(InputError, match="one token per cell"):
        SudokuSource(settings, Tokenizer.from_directory(tmp_path), EOS)


def test_a_recipe_names_its_source_by_module_and_class(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    assert find_source(NAME) is SudokuSource
    with pytest.raises(InputError, match="infill must be left out"):
        DataSettings(files=("a",), max_length=9, source=NAME, infill=0.5)


@pytest.mark.parametrize(
    "name",
    ["os:system", "examples.sudoku.source", "examples.sudoku.nothing:SudokuSource", "../source:SudokuSource", "", ":"],
)
def test_a_source_outside_the_current_directory_is_rejected(monkeypatch, request, name):
    monkeypatch.chdir(request.config.rootpath)
    with pytest.raises(InputError, match="below the current directory"):
        find_source(name)


def test_a_source_that_cannot_be_imported_is_reported_with_its_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_source.py").write_text("import no_such_module\n")
    with pytest.raises(InputError, match="broken_source.py.*no_such_module"):
        find_source("broken_source:Anything")
    (tmp_path / "empty_source.py").touch()
    with pytest.raises(InputError, match="empty_source.py.*Anything"):
        find_source("empty_source:Anything")
