"""The comparison of canvases with writing token by token."""

import json
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from examples.comparison import run
from gesso.eval import OwnData
from gesso.eval.plot import HEIGHT, WIDTH, Point, Series, svg


class Short(OwnData):
    options = {"max_new_tokens": 4}  # noqa: RUF012


@dataclass(frozen=True)
class Toy(run.Subject):
    """A subject whose task has two rows."""

    rows: Path = Path()

    def load(self):
        return Short(data=(self.rows,))


@pytest.fixture
def compared(monkeypatch, tiny_directory, tmp_path):
    """Return a function that compares ways on two rows with a tiny model, and returns the table."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": word, "answer": word}) + "\n" for word in ("one", "two")))
    monkeypatch.setitem(run.SUBJECTS, "toy", Toy("toy", str(tiny_directory), rows=rows))

    def compare(*ways: str) -> str:
        chosen = [part for way in ways for part in ("--way", way)]
        run.main(["toy", "--out", str(tmp_path / "out"), "--count", "2", "--device", "cpu", *chosen])
        return (tmp_path / "out/table.md").read_text()

    return compare


def test_the_table_has_every_way_that_was_measured_and_its_difference_to_tokens(compared, tmp_path):
    assert compared(run.TOKENS).count("toy, 2") == 1
    table = compared("canvas, 2 steps", "verified")
    assert table.count("toy, 2") == 3 and table.count("+0.0") == 2  # a random model is always wrong
    assert "canvas, 2 steps" in (tmp_path / "out/comparison.svg").read_text()


def test_plots_of_several_tasks_stand_beside_each_other():
    plots = [svg([Series("a", [Point(1, 0.5)])], title=title, y_label="right") for title in ("one", "two", "three")]
    sheet = ElementTree.fromstring(run.sheet(plots))
    places = [(part.get("x"), part.get("y")) for part in sheet]
    assert places == [("0", "0"), (str(WIDTH), "0"), ("0", str(HEIGHT))]
    assert not [part for part in sheet.iter() if part.get("id")], "an id may occur once in a file"


def test_a_way_is_measured_once(compared, tmp_path):
    before = compared("canvas, 1 step")
    (file,) = (tmp_path / "out" / "toy").iterdir()
    written = file.stat().st_mtime_ns
    assert compared("canvas, 1 step") == before
    assert file.stat().st_mtime_ns == written
