"""Fonts and wider styles of the pictures of Sudokus: training has them, and the held-out pictures stay the same."""

import hashlib
import io
import random
import zipfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch
from PIL import ImageFont

import gesso
from examples.python_infill import wheels
from examples.sudoku_images import fonts, train
from examples.sudoku_images.appearance import Style, draw_style
from examples.sudoku_images.fonts import FontPackage, fonts_in, write_fonts
from examples.sudoku_images.pictures import draw_picture
from examples.sudoku_images.stream import batch
from examples.sudoku_images.task import SudokuFonts, SudokuImages
from examples.sudoku_images.tower import see, trained
from examples.sudoku_images.wider import ANGLE, DIGITS, MARGIN, WIDER, contrast, readable, widen
from gesso.bundled import SOLVER
from gesso.errors import InputError

EMPTY = "0" * 81
FULL = "123456789" * 9
ADDED = {"font", "wide", "filled", "marks", "highlight", "boxes", "border", "around", "bar"}
# Of held-out pictures 0 to 11: a hash of the pixels, and the next random number after the picture was drawn.
HELD_OUT = (
    ("f6d1c591f283b0da", 0.9237370623246808),
    ("210856de7b8ec2ca", 0.4010218362760223),
    ("d83d843416f947a6", 0.5117014972297085),
    ("623fbf45e766eb6c", 0.9707644950463578),
    ("3ee07345a297b062", 0.06356746716516803),
    ("b06182dc73924473", 0.22976085521954148),
    ("d43d645a1c893e20", 0.8258841456683828),
    ("016ff9822c3697f7", 0.1435524073023513),
    ("2d48c1a8300eb67d", 0.18073494602176288),
    ("c23f2bb60b8e7868", 0.4677623704881305),
    ("2e5c1cc2bc223a0b", 0.7375002770064029),
    ("4bcc319940109b01", 0.48322943404466867),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a directory with the font of Pillow under two names."""
    directory = tmp_path_factory.mktemp("fonts")
    font = ImageFont.load_default(20)
    assert isinstance(font, ImageFont.FreeTypeFont) and isinstance(font.path, io.BytesIO)
    for name in ("b.ttf", "a.TTF"):
        (directory / name).write_bytes(font.path.getvalue())
    (directory / "OFL.txt").write_text("a licence")
    return directory


def training_styles(count: int, difficulty: float = 1.0, files=(None,)) -> list[Style]:
    found = []
    for seed in range(count):
        rng = random.Random(seed)
        found.append(widen(draw_style(rng, difficulty), rng, difficulty, files))
    return found


# --- held-out pictures ----------------------------------------------------------------------------------------------


def held_out_pictures():
    for item in SudokuImages().items("test", len(HELD_OUT), seed=0):
        style, rng = item.ask._style()
        yield draw_picture(item.ask.puzzle, style, rng), style, rng


def test_held_out_pictures_take_the_same_random_numbers_as_before():
    for (_, style, rng), (_, number) in zip(held_out_pictures(), HELD_OUT, strict=True):
        assert rng.random() == number
        assert {field.name for field in fields(style) if getattr(style, field.name) == field.default} == ADDED


@pytest.mark.skipif(PIL.__version__ != "13.0.0", reason="the hashes are of pictures drawn by Pillow 13.0.0")
def test_held_out_pictures_have_the_same_pixels_as_before():
    found = [hashlib.sha256(picture.tobytes()).hexdigest()[:16] for picture, _, _ in held_out_pictures()]
    assert found == [pixels for pixels, _ in HELD_OUT]


# --- styles of training ---------------------------------------------------------------------------------------------


def test_half_of_the_training_pictures_stay_simple():
    """A simple picture differs from the narrow ranges by its font and the contrast of its ink at most."""
    simple = 0
    for seed in range(400):
        before = draw_style(random.Random(seed))
        (rng := random.Random(seed)), (style := widen(draw_style(rng), rng, 1.0, ("a.ttf", None)))
        simple += replace(style, font=None, bold=before.bold, ink=before.ink) == before
    assert WIDER == 0.5 and 160 < simple < 240


def test_easy_pictures_come_first():
    assert all(style.marks is style.highlight is style.filled is None for style in training_styles(100, 0.0))


def test_digits_of_training_pictures_are_readable():
    for style in training_styles(300):
        papers = [style.paper, *([style.highlight[1]] if style.highlight else [])]
        inks = [style.ink, *([style.filled] if style.filled else [])]
        assert min(contrast(ink, paper) for ink in inks for paper in papers) >= DIGITS


def test_training_has_every_hue_and_both_kinds_of_paper():
    styles = training_styles(600)
    blue = [style for style in styles if style.ink[2] > 1.5 * max(style.ink[0], style.ink[1])]
    assert {sum(style.paper) > 384 for style in blue} == {True, False}


def test_the_ranges_of_training_reach_the_limits():
    styles = training_styles(400)
    assert 0.9 * MARGIN < max(max(style.margins) for style in styles) <= MARGIN
    turned = max(
        abs(np.mean([style.corners[0], style.corners[3], -style.corners[4], -style.corners[7]])) for style in styles
    )
    assert 0.5 * np.tan(np.radians(0.8 * ANGLE)) < turned < 0.5 * np.tan(np.radians(1.3 * ANGLE))
    assert 0.06 < np.mean([style.marks is not None for style in styles]) < 0.14, "a tenth have pencil marks"


def test_contrast_is_that_of_the_guideline():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)
    assert readable((0, 0, 255), (255, 255, 255), 3) == (0, 0, 255)
    assert contrast(readable((20, 20, 90), (10, 10, 10), 4.5), (10, 10, 10)) >= 4.5


def plain(**changes) -> Style:
    return replace(draw_style(random.Random(3), difficulty=0.0), jitter=0.0, **changes)


@pytest.mark.parametrize(
    ("grid", "changes"),
    [
        (EMPTY, {"marks": (90, 90, 90)}),
        (EMPTY, {"highlight": ("boxes", (200, 220, 255))}),
        (EMPTY, {"highlight": ("selected", (200, 220, 255))}),
        (EMPTY, {"highlight": ("seen", (200, 220, 255))}),
        (FULL, {"highlight": ("digits", (200, 220, 255))}),
        (FULL, {"filled": (0, 0, 255)}),
        (FULL, {"wide": 0.7}),
        (EMPTY, {"boxes": (255, 0, 0)}),
        (EMPTY, {"border": False}),
        (EMPTY, {"around": (120, 160, 120)}),
        (EMPTY, {"margins": (0.05, 0.2, 0.05, 0.05), "bar": (60, 60, 200)}),
    ],
)
def test_every_part_of_a_style_changes_the_picture(grid, changes):
    kept = {name: value for name, value in changes.items() if name == "margins"}
    before, after = (
        np.asarray(draw_picture(grid, style, random.Random(0))).astype(int)
        for style in (plain(**kept), plain(**changes))
    )
    assert before.shape == after.shape and (np.abs(before - after).max(-1) > 30).sum() > 50


def test_pencil_marks_leave_the_middle_of_most_cells_free():
    """Marks are small digits in their places of a square of 3 x 3; no cell shows a digit of full size."""
    style = plain(marks=(0, 0, 0))
    without, marked = (np.asarray(draw_picture(EMPTY, one, random.Random(0))).astype(int) for one in (plain(), style))
    changed = np.abs(without - marked).max(-1) > 60
    rows, columns = (round(9 * style.cell * style.margins[axis]) for axis in (1, 0))
    cells = changed[rows : rows + 9 * style.cell, columns : columns + 9 * style.cell]
    shares = [
        cells[row * style.cell : (row + 1) * style.cell, column * style.cell : (column + 1) * style.cell].mean()
        for row in range(9)
        for column in range(9)
    ]
    assert max(shares) < 0.12 and sum(share == 0 for share in shares) > 8 and sum(share > 0 for share in shares) > 40


# --- fonts ----------------------------------------------------------------------------------------------------------


def test_fonts_are_drawn_by_name_from_the_folder(folder, tmp_path):
    assert [Path(file).name for file in fonts_in(folder)] == ["a.TTF", "b.ttf"]
    (tmp_path / "OFL.txt").write_text("a licence")
    with pytest.raises(InputError, match=r"has no fonts .*python -m examples\.sudoku_images\.fonts --out data/fonts"):
        fonts_in(tmp_path)


def test_training_draws_from_all_fonts_and_the_same_seed_gives_the_same_pictures(folder):
    files = (*fonts_in(folder), None)
    assert {style.font for style in training_styles(60, files=files)} == {*files}
    pixels, _ = batch(range(6), 0, 3, fonts=files)
    assert torch.equal(batch(range(6), 0, 3, fonts=files)[0], pixels)
    assert not torch.equal(batch(range(6), 0, 3)[0], pixels)


def test_the_task_of_fonts_types_every_digit_in_the_fonts_of_a_folder(folder):
    items = [*SudokuFonts(data=(folder,)).items("test", 4, seed=0)]
    assert [Path(item.ask.font).name for item in items] == ["a.TTF", "b.ttf", "a.TTF", "b.ttf"]
    for item, other in zip(items, SudokuImages().items("test", 4, seed=0), strict=True):
        assert item.expected == other.expected and item.ask.style == replace(
            other.ask.style, written=False, font=item.ask.font
        )
        assert item.ask.picture().tobytes() == other.ask.picture(written=False).tobytes(), "it is Pillow's own font"
    with pytest.raises(InputError, match="--data data/fonts/held-out"):
        next(SudokuFonts().items("test", 1, seed=0))


def wheel(directory: Path, metadata: str) -> FontPackage:
    file = directory / "face-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as members:
        members.writestr("face-1.dist-info/METADATA", metadata)
        members.writestr("face/files/Face-Bold.otf", b"digits")
        members.writestr("face/files/Other.otf", b"not listed")
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    return FontPackage(name="face", version="1", license="OFL-1.1", sha256=sha256, files=["face/files/Face-Bold.otf"])


def test_listed_files_are_written_and_held_out_fonts_apart(tmp_path):
    package = wheel(tmp_path, "License: SIL OFL 1.1\n")
    (file,) = write_fonts([package], tmp_path / "out", tmp_path)
    assert file == tmp_path / "out" / "train" / "Face-Bold.otf" and file.read_bytes() == b"digits"
    (file,) = write_fonts([replace(package, held_out=True)], tmp_path / "out", tmp_path)
    assert file.parent.name == "held-out"


def test_a_licence_that_the_metadata_does_not_have_is_refused(tmp_path):
    package = wheel(tmp_path, "License: Proprietary\n")
    with pytest.raises(InputError, match=r"face: listed as OFL-1.1, but its metadata has Proprietary"):
        write_fonts([package], tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


def test_no_held_out_family_is_in_training():
    listed = wheels.read_packages(fonts.LIST, FontPackage)
    training, held_out = (
        {Path(file).stem.partition("-")[0].lower() for one in listed if one.held_out == wanted for file in one.files}
        for wanted in (False, True)
    )
    assert held_out == {"dejavusans", "dejavuserif", "dejavusansmono", "texgyreheros"}
    assert len(training) >= 8 and not any("dejavu" in name or "heros" in name for name in training)


# --- start ----------------------------------------------------------------------------------------------------------


def test_training_starts_from_the_tower_of_a_model():
    tower = train.read_tower(SOLVER, torch.device("cpu"))
    expected = gesso.load(SOLVER).model.vision
    assert all(torch.equal(one, expected.get_parameter(name).float()) for name, one in tower.named_parameters())
    pixels, _ = batch(range(1), 0, 9)
    see(tower, pixels, torch.float32).sum().backward()
    assert all(parameter.grad is not None for parameter in trained(tower).values())


def test_a_start_needs_the_grids_of_models(capsys):
    with pytest.raises(SystemExit):
        train.arguments(["--out", "x", "--start", SOLVER, "--side", "3"])
    assert "--start needs --side 9" in capsys.readouterr().err
