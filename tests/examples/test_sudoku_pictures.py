"""Pictures of Sudokus, the grid that a model reads in them, and the task."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import gesso
from examples.sudoku_images import appearance, draw, styles
from examples.sudoku_images.appearance import draw_style, rotation
from examples.sudoku_images.bundle import write_bundle
from examples.sudoku_images.pictures import draw_picture
from examples.sudoku_images.task import Drawing, SudokuImages
from examples.sudoku_images.tower import new_tower
from gesso.bundled import SOLVER, directory
from gesso.cli import sudoku_view
from gesso.demo import FILES
from gesso.errors import InputError
from gesso.eval.evaluate import evaluate
from gesso.eval.sudoku.grid import parse_puzzle
from gesso.eval.sudoku.reading import digit_embeddings, puzzle_prompt, read_grid
from gesso.eval.sudoku.task import spaced

PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
SOLUTION = parse_puzzle(PUZZLE)[1]
EMPTY = "0" * 81


def drawn(puzzle, seed):
    return Drawing(puzzle, seed).picture()


# --- pictures -------------------------------------------------------------------------------------------------------


def test_a_picture_depends_on_its_seed_alone():
    first, again, other = (drawn(PUZZLE, seed) for seed in ("a", "a", "b"))
    assert first.tobytes() == again.tobytes() and first.tobytes() != other.tobytes()


@pytest.mark.parametrize("held_out", [False, True])
def test_only_held_out_pictures_have_the_held_out_styles(held_out, monkeypatch):
    """Ink hues and digit sizes of training and of held-out pictures are disjoint."""
    hues = []
    # Rounded colours do not tell their hue.
    monkeypatch.setattr(appearance, "colour", lambda hue, saturation, value: hues.append(hue) or (0, 0, 0))
    styles = [draw_style(random.Random(seed), held_out=held_out) for seed in range(200)]
    sizes = {
        appearance.HELD_OUT_SIZES[0] <= (style.height - 0.42) / 0.3 <= appearance.HELD_OUT_SIZES[1] for style in styles
    }
    inks = {appearance.HELD_OUT_HUES[0] <= hue <= appearance.HELD_OUT_HUES[1] for hue in hues[2::3]}
    assert sizes == inks == {held_out}


@pytest.mark.parametrize("seed", range(8))
def test_every_digit_is_in_its_cell(seed):
    """A digit changes the picture near the middle of its cell, and nowhere in other cells."""
    style = draw_style(random.Random(seed), difficulty=0.0)  # upright and without noise
    cell = style.cell
    left, top = (round(9 * cell * style.margins[axis]) for axis in (0, 1))
    for place in (0, 8, 40, 72, 80):
        grid = EMPTY[:place] + "8" + EMPTY[place + 1 :]
        with_digit, without = (
            np.asarray(draw_picture(one, style, random.Random(0))).astype(int) for one in (grid, EMPTY)
        )
        rows, columns = np.nonzero(np.abs(with_digit - without).max(-1) > 40)
        stretched = with_digit.shape[1] / (9 * cell + left + round(9 * cell * style.margins[2]))
        assert abs(rows.mean() - (top + (place // 9 + 0.5) * cell)) < 0.15 * cell
        assert abs(columns.mean() - (left + (place % 9 + 0.5) * cell) * stretched) < 0.15 * cell
        assert np.ptp(rows) < cell and np.ptp(columns) < cell


def test_the_corners_of_a_grid_stay_in_its_picture():
    """A rotated and slanted grid is not cut off: the digit in each corner changes the picture."""
    for seed in range(12):
        style = replace(draw_style(random.Random(seed)), noise=0.0, quality=None, blur=0.0)
        empty = np.asarray(draw_picture(EMPTY, style, random.Random(0))).astype(int)
        for place in (0, 8, 72, 80):
            grid = EMPTY[:place] + "8" + EMPTY[place + 1 :]
            changed = np.abs(np.asarray(draw_picture(grid, style, random.Random(0))) - empty).max(-1) > 20
            assert changed.sum() > 0.03 * style.cell**2


def test_a_change_of_a_style_changes_the_picture_and_nothing_else():
    drawing = Drawing(PUZZLE, "a")
    assert drawing.picture(corners=drawing.style.corners).tobytes() == drawing.picture().tobytes()
    assert drawing.picture(corners=rotation(10)).tobytes() != drawing.picture().tobytes()


def test_the_picture_in_the_repository_is_held_out_picture_71():
    puzzle = "007006002014003000000700584489005007000008460020071900302007040000009050500324090"
    with Image.open(FILES / "puzzle.jpg") as file:
        shown, again = (np.asarray(image).astype(int) for image in (file, drawn(puzzle, "test/0/71")))
    assert np.abs(shown - again).mean() < 4, "they differ by JPEG artefacts only"
    assert draw.held_out(1).seed == "test/0/1"


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> gesso.Gesso:
    """gesso-sudoku with a tower that is not trained."""
    target = tmp_path_factory.mktemp("bundle") / SOLVER
    write_bundle(new_tower(9, 320, 0, torch.device("cpu")), target, directory(SOLVER))
    return gesso.load(target)


@pytest.fixture
def perfect(model, monkeypatch):
    """Give the model a tower that reads PUZZLE in every picture, up to some noise."""
    digits = [int(digit) for digit in PUZZLE]
    first_DH, rest_DH = digit_embeddings(model.model, model.tokenizer)
    soft_SH = torch.cat([first_DH[digits[:1]], rest_DH[digits[1:]]])
    noise_SH = 0.2 * soft_SH.std() * torch.randn(soft_SH.shape, generator=torch.Generator().manual_seed(0))
    # A tower that reads takes hours of training.
    monkeypatch.setattr(model.engine.runner.seen, "features", lambda image: soft_SH + noise_SH)


def test_the_text_weights_are_those_of_the_package(model):
    before = dict(gesso.load(SOLVER, text_only=True).model.named_parameters())
    assert all(torch.equal(before[name], model.model.get_parameter(name)) for name in before)
    assert model.tokenizer.image_ids == (110, 111, 112)
    assert model.tokenizer.encode(spaced(PUZZLE)) == gesso.load(SOLVER).tokenizer.encode(spaced(PUZZLE))


@pytest.mark.parametrize("size", [(300, 300), (400, 300), (1000, 1900), (90, 60)])
def test_every_picture_has_one_soft_token_per_cell(model, size):
    image = model.read_image(drawn(PUZZLE, "a").resize(size))
    assert (image.tokens, image.rows, image.columns) == (81, 27, 27)
    assert len(puzzle_prompt(model, image).tokens) == 82


def test_a_banner_is_refused(model):
    image = model.read_image(drawn(PUZZLE, "a").resize((900, 100)))
    with pytest.raises(InputError, match="crop the picture to the grid"):
        read_grid(model, image)


def test_soft_tokens_at_digits_are_read_and_solved_like_a_typed_puzzle(model, perfect):
    image = model.read_image(drawn(PUZZLE, "a"))
    assert read_grid(model, image) == PUZZLE
    found = model.generate(puzzle_prompt(model, image), seed=1, max_new_tokens=256)
    assert "".join(found.text.split()) == SOLUTION


def test_the_task_scores_reading_and_solving(model, perfect):
    task = SudokuImages(clues=(40, 40))
    (item,) = task.items("test", 1, 0)
    puzzle, _, solution = item.expected.partition("\n")
    assert task.score(item, item.expected) == {"solved": 1.0, "grid read": 1.0, "cells read": 1.0}
    wrong = puzzle[:80] + ("1" if puzzle[80] != "1" else "2")
    assert task.score(item, f"{wrong}\n{solution}") == {"solved": 1.0, "grid read": 0.0, "cells read": 80 / 81}
    assert task.score(item, "") == {"solved": 0.0, "grid read": 0.0, "cells read": 0.0}
    (outcome,) = evaluate(model, task, [item]).outcomes
    assert outcome.output.partition("\n")[0] == PUZZLE, "the model reads the same puzzle in every picture"


def test_a_puzzle_in_a_picture_is_solved_at_the_first_attempt(model, perfect):
    puzzle = sudoku_view.read_picture(model, drawn(PUZZLE, "a"), "a.png")
    (attempt,) = sudoku_view.attempts(model, puzzle, most=4, watch=False, seed=3)
    assert attempt.solved and attempt.answer == SOLUTION
    assert puzzle.lines().startswith("5 3 . . 7 . . . .\n6 . . 1 9 5 . . .\n")


def test_a_grid_that_is_no_puzzle_is_shown_with_the_reason(model):
    with pytest.raises(
        InputError, match=r"a\.png is read as\n(. .*\n)+this Sudoku has several solutions.*crop the picture"
    ):
        sudoku_view.read_picture(model, drawn(PUZZLE, "a"), "a.png")


def test_bundled_model_reads_and_solves_pictures_in_styles_it_was_not_trained_on():
    task = SudokuImages()
    report = evaluate(gesso.load(SOLVER), task, list(task.items("test", 12, seed=0)))
    for score in ("grid read", "solved"):
        assert sum(outcome.scores[score] for outcome in report.outcomes) >= 10


def test_shares_by_style_count_every_picture(capsys):
    styles.main(["--count", "4", "--changed", "1"])
    lines = capsys.readouterr().out.splitlines()
    counts = {line.split(" | ")[0].strip("| "): int(line.rstrip(" |").rpartition(" of ")[2]) for line in lines}
    light, typed, written = (counts[f"light paper{digits}"] for digits in ("", ", typed digits", ", written digits"))
    assert counts["all"] == 4 == light + sum(count for name, count in counts.items() if name.startswith("dark"))
    assert light == typed + written
    assert {counts[change] for change in styles.CHANGES} == {1}


def test_text_only_refuses_a_picture_and_says_what_to_do(main, tmp_path):
    file = tmp_path / "puzzle.png"
    drawn(PUZZLE, "a").save(file)
    done = main("sudoku", "--image", str(file), "--text-only")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"gesso: {file}: this model sees no images: ") and "without text_only" in done.err


def test_bundle_fits_the_package(model):
    files = [*Path(model.directory).iterdir(), *directory().iterdir()]
    assert sum(file.stat().st_size for file in files) < 50 * 10**6
