"""Pictures become the patches that the reference's image processor makes of them."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.models.gemma4.image_processing_pil_gemma4 import (
    Gemma4ImageProcessorPil,
    get_aspect_ratio_preserving_size,
)

from gesso.errors import InputError
from gesso.images.budgets import BUDGETS
from gesso.images.process import prepare, target_size
from gesso.images.read import open_picture
from tests.images.files import SIZES, drawing, encoded, files, gray16

FILES = dict(files())


def reference(picture: Image.Image, budget: int) -> tuple[np.ndarray, tuple[int, int], int]:
    """Return the reference's patches in steps of 1 / 255, its rows and columns, and its number of soft tokens."""
    found = Gemma4ImageProcessorPil(max_soft_tokens=budget)(images=picture, return_tensors="np")
    positions = found["image_position_ids"][0]
    real = positions[:, 0] >= 0
    columns, rows = (positions[real].max(axis=0) + 1).tolist()
    return found["pixel_values"][0][real] * 255, (rows, columns), int(found["num_soft_tokens_per_image"][0])


def assert_same(picture: Image.Image, upright: Image.Image, budget: int) -> None:
    mine = prepare(picture, budget)
    patches, size, tokens = reference(upright, budget)
    assert ((mine.rows, mine.columns), mine.tokens) == (size, tokens)
    assert mine.tokens <= budget and mine.patches.dtype == np.uint8
    assert np.abs(mine.patches - patches).max() < 1e-3


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_any_kind_becomes_the_patches_of_the_reference(name):
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(FILES[name])))
    assert_same(open_picture(FILES[name], "file"), upright, 70)
    # A picture that a user opened himself is treated alike.
    assert_same(Image.open(io.BytesIO(FILES[name])), upright, 70)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pictures_of_any_size_become_the_patches_of_the_reference(size):
    assert_same(drawing(*size), drawing(*size), 70)


@pytest.mark.parametrize("budget", BUDGETS[1:])
def test_every_budget_gives_the_patches_of_the_reference(budget):
    assert_same(drawing(4000, 500), drawing(4000, 500), budget)


def test_sizes_equal_the_reference_in_every_budget():
    rng = np.random.default_rng(0)
    sizes = [*SIZES, *(2 ** rng.uniform(0, 14, (1000, 2))).astype(int).tolist()]
    for (width, height), budget in itertools.product(sizes, BUDGETS):
        rows, columns = get_aspect_ratio_preserving_size(height, width, 16, budget * 9, 3)
        assert target_size(width, height, budget, 48) == (columns, rows)


def test_gray_of_16_bits_is_scaled_where_the_reference_clips_it_to_white():
    wide = gray16(48, 48)
    patches, _, _ = reference(wide, 70)
    assert (patches > 250).mean() > 0.95, "the reference scales it now: prepare can do as it does"
    pixels = np.asarray(open_picture(encoded(wide, "PNG"), "file"))
    assert np.array_equal(pixels[..., 0], np.round(np.asarray(wide) / 257)) and pixels.max() == 255
    assert np.array_equal(pixels[..., 0], pixels[..., 2])
    assert np.array_equal(np.asarray(open_picture(encoded(wide, "TIFF"), "file")), pixels)
    see_through = encoded(wide, "PNG", transparency=int(wide.getpixel((5, 5))))
    assert open_picture(see_through, "file").getpixel((5, 5)) == (255, 255, 255)
    assert open_picture(see_through, "file").getpixel((6, 5)) == tuple(pixels[5, 6])


def test_a_transparent_picture_is_laid_over_white():
    ink = Image.new("RGBA", (50, 50), (0, 0, 0, 0))
    ink.paste((0, 0, 0, 255), (10, 10, 20, 20))
    read = open_picture(encoded(ink, "PNG"), "file")
    assert read.getpixel((0, 0)) == (255, 255, 255) and read.getpixel((15, 15)) == (0, 0, 0)


def test_a_prepared_picture_is_named_by_its_pixels_and_its_budget():
    picture = drawing(100, 80)
    assert prepare(picture, 70).digest == prepare(picture.copy(), 70).digest
    others = (prepare(picture, 140), prepare(drawing(100, 80, seed=1), 70), prepare(picture.transpose(1), 70))
    assert len({prepare(picture, 70).digest, *(other.digest for other in others)}) == 4


def test_pictures_that_cannot_be_prepared_are_refused_with_the_reason():
    with pytest.raises(InputError, match="no pixels: it is 0 x 5"):
        prepare(Image.new("RGB", (0, 5)))
    for mode in ("I", "F"):
        with pytest.raises(InputError, match="32 bits"):
            prepare(Image.new(mode, (5, 5)))
    for budget in (0, 100, 2000, True, "280"):
        with pytest.raises(InputError, match="70, 140, 280, 560 or 1120 tokens"):
            prepare(Image.new("RGB", (5, 5)), budget)
