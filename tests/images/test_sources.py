"""What a Python program can give as an image."""

import base64
import io
import os
from pathlib import Path

import pytest
from PIL import Image as Pillow

from gesso.errors import InputError
from gesso.images.sources import read_source
from gesso.images.urls import data_of
from tests.images.files import drawing, encoded

PNG = encoded(drawing(30, 20), "PNG")
URL = "data:image/png;base64," + base64.b64encode(PNG).decode()


def test_a_path_bytes_a_url_and_a_pillow_image_give_the_same_image(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "photo.gif"  # the contents decide
    path.write_bytes(PNG)
    monkeypatch.setenv("HOME", str(tmp_path))
    sources = [path, str(path), "~/photo.gif", PNG, bytearray(PNG), memoryview(PNG), URL, URL.upper()[:5] + URL[5:]]
    sources += [drawing(30, 20), Pillow.open(io.BytesIO(PNG))]
    images = [read_source(source, "image", 70) for source in sources]
    assert len({image.digest for image in images}) == 1
    assert read_source(images[0], "image") is images[0]


def test_base64_may_be_wrapped_and_unpadded():
    packed = base64.encodebytes(PNG).decode()
    assert data_of(f"data:;base64,{packed}", "url") == data_of(URL.rstrip("="), "url") == PNG


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("nowhere.png", "nowhere.png cannot be read: No such file or directory"),
        (Path(os.sep), "Is a directory"),
        ("a\0b", "null byte"),
        ("https://example.org/a.png", "URLs are not opened, except data: URLs; download it"),
        ("file:///etc/passwd", "give its path"),
        ("data:image/png,abc", "expected a URL like data:image/png;base64,..."),
        ("data:image/png;base64", "expected a URL like"),
        ("data:image/png;base64,a?b=", "not valid base64"),
        ("data:image/png;base64,", "empty"),
        ("data:image/png;base64," + "A" * 40_000_001, "more than 20,000,000 bytes"),
        (b"", "empty"),
        (b"GIF89a", "the GIF file is damaged"),
        (7, "expected a path, bytes, a data: URL or a Pillow image, got int"),
        (Pillow.new("RGB", (0, 0)), "no pixels"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_source_that_cannot_be_read_is_refused_with_its_field(source, expected):
    with pytest.raises(InputError, match=r"^messages\[0\]\.content\[1\]\.image: ") as refused:
        read_source(source, "messages[0].content[1].image")
    assert expected in str(refused.value)


def test_a_pillow_image_that_is_cut_off_is_refused():
    cut = Pillow.open(io.BytesIO(encoded(drawing(200, 200), "PNG")[:2000]))
    with pytest.raises(InputError, match="^image: the picture cannot be read"):
        read_source(cut, "image")


def test_a_prepared_image_has_its_budget():
    with pytest.raises(InputError, match="prepared already"):
        read_source(read_source(PNG, "image"), "image", 70)


def test_a_long_picture_fits_the_positions_of_a_small_model():
    image = read_source(drawing(900, 10), "image", 70, patch=4, pool=3, positions=16)
    assert (image.rows, image.columns, image.tokens) == (3, 15, 5)
    assert image.patches.shape == (45, 48)
