"""Files that anybody may send: each is read within limits, or refused with the reason."""

import io
import json
import random
import subprocess
import sys
import threading
import warnings

import pytest
from PIL import Image

from gesso.errors import InputError
from gesso.images.read import open_picture
from tests.images.files import drawing, encoded, files, translucent
from tests.images.hostile import gif, many_frames, webp
from tests.waiting import PATIENCE, WORK, bounded

MEMORY = 200  # MB beside the file


def test_a_hostile_file_is_refused_with_the_reason_within_time_and_memory():
    command = [sys.executable, "-m", "tests.images.hostile"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert not ended.stderr
    for name, expected, message, seconds, megabytes in json.loads(ended.stdout):
        assert message.startswith("file: ") and expected in message, name
        assert seconds < WORK and megabytes < MEMORY, name


@pytest.mark.parametrize(("kind", "data"), list(many_frames()), ids=["GIF", "PNG"])
def test_only_the_first_of_10000_frames_is_read(kind, data):
    with bounded():
        assert open_picture(data, "file").size == (8, 8)
    with Image.open(io.BytesIO(data)) as opened:
        assert getattr(opened, "n_frames", 0) == 10_000, "the file is what it claims to be"


def test_the_contents_decide_the_format_and_not_a_name():
    assert open_picture(encoded(drawing(5, 4), "PNG"), "photo.jpg").size == (5, 4)


@pytest.mark.parametrize(
    "data",
    [gif(12_000, 9_000, (8, 8)), webp(12_000, 9_000), encoded(translucent(), "PNG")[:99]],
    ids=["GIF", "WebP", "PNG"],
)
def test_warnings_of_pillow_do_not_reach_the_caller(data):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(InputError):
            open_picture(data, "file")
    assert not caught


def test_threads_read_pictures_side_by_side():
    data = [encoded(drawing(40, 30, seed), "PNG") for seed in range(4)]
    expected = [open_picture(one, "file").tobytes() for one in data]
    found: list[bytes] = []
    filters = list(warnings.filters)

    def read() -> None:
        found.extend(open_picture(one, "file").tobytes() for _ in range(20) for one in data)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found.count(expected[0]) == 80 and set(found) == set(expected)
    assert list(warnings.filters) == filters


def test_a_damaged_file_is_read_or_refused_and_nothing_else_is_raised():
    rng = random.Random(0)
    for _, data in files():
        for _ in range(20):
            damaged = bytearray(data)
            for _ in range(rng.randint(1, 8)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            try:
                assert open_picture(bytes(damaged), "file").mode == "RGB"
            except InputError as error:
                assert str(error).startswith("file: ")
