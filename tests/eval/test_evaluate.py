"""Evaluation: intervals, reproducibility, failures and plots."""

import itertools
import json
from xml.etree import ElementTree

import pytest

from gesso import InputError
from gesso.eval import Sudoku
from gesso.eval.estimate import estimate, estimate_score, wilson
from gesso.eval.evaluate import evaluate
from gesso.eval.plot import Point, Series, series, svg
from gesso.eval.task import SPLITS, Item

FEW = {"steps": 2, "max_new_tokens": 16}


@pytest.fixture(scope="module")
def puzzles() -> dict[str, list[Item]]:
    return {split: list(Sudoku().items(split, 6, seed=3)) for split in SPLITS}


def test_wilson_intervals_match_published_values():
    """Newcombe 1998, table I, method 3 (score without continuity correction)."""
    for successes, count, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
                                        (1, 29, 0.0061, 0.1718), (20, 20, 0.8389, 1.0)):  # fmt: skip
        assert wilson(successes, count) == pytest.approx((low, high), abs=5e-5)


def test_estimates_have_intervals_for_their_kind_of_value():
    found = estimate_score([1.0, 0.0, 1.0, 1.0])
    assert (found.mean, found.low, found.high) == (0.75, *wilson(3, 4))
    steps = estimate([2.0, 4.0, 6.0])
    assert (steps.mean, steps.high - steps.mean) == (4, pytest.approx(1.96 * 2 / 3**0.5, rel=1e-4))
    assert estimate([1.0, 1.0]) == estimate([1.0] * 9)  # not proportions: the interval is empty
    assert estimate_score([0.9, 1.0, 1.0]).high == 1
    assert (estimate([3.0]).low, estimate([]).mean) == (None, 0)


def without_times(document: dict) -> dict:
    items = [{k: v for k, v in item.items() if k != "seconds"} for item in document["items"]]
    return {**document, "seconds": None, "items": items}


def test_an_evaluation_does_not_depend_on_the_batch_size(tiny, puzzles):
    items, calls = puzzles["test"][:5], []

    def run(batch):
        def record(done, total):
            calls.append((done, total))

        return evaluate(tiny, Sudoku(), items, seed=2, batch=batch, progress=record, data={"split": "test"}, **FEW)

    one, four = run(1), run(4)
    assert calls == [(n, 5) for n in range(1, 6)] * 2
    documents = [json.loads(json.dumps(found.to_dict(), allow_nan=False)) for found in (one, four)]
    assert without_times(documents[0]) == without_times(documents[1])
    assert without_times(documents[0]) != without_times(evaluate(tiny, Sudoku(), items, seed=3, **FEW).to_dict())
    found = documents[0]
    assert (found["task"], found["count"], found["seed"], found["failures"]) == ("sudoku", 5, 2, [])
    assert found["settings"]["steps"] == 2
    assert found["settings"]["max_new_tokens"] == 16
    assert found["data"] == {"split": "test"}
    assert found["scores"]["exact"] == {"mean": 0, "low": 0, "high": pytest.approx(wilson(0, 5)[1])}
    assert 1 <= found["denoising_steps"]["mean"] <= 4  # two steps, and two more if an empty canvas was denoised again
    assert 0 < found["tokens_per_step"]["mean"] <= 16
    assert len({item["seed"] for item in found["items"]}) == 5
    alone = tiny.generate(items[1].prompt, seed=found["items"][1]["seed"], **FEW)
    assert alone.text == found["items"][1]["output"]


def test_a_failed_item_scores_zero_and_is_reported(tiny, puzzles):
    good = puzzles["test"][0]
    long = Item(name="too long", prompt="1 " * 9000, expected=good.expected, meta=good.meta)
    talk = Item(name="talk", prompt=({"role": "user", "content": good.prompt},), expected=good.expected, meta=good.meta)

    class Failing:
        def __call__(self, *args, **kwargs):
            raise RuntimeError("not today")

    found = evaluate(tiny, Sudoku(), [good, long, talk], **FEW)
    assert [outcome.name for outcome in found.failures] == ["too long"]
    assert "context overflow" in found.to_dict()["failures"][0]["error"]
    assert found.outcomes[1].scores == {"exact": 0, "cells": 0, "valid": 0}
    lines = found.summary().splitlines()
    assert lines[0] == "sudoku, 3 items, at most 2 steps per canvas"
    assert lines[1].split() == ["exact", "0.0", "%", "(0.0", "to", "56.1)"]
    assert [line.split()[0] for line in lines[1:]] == ["exact", "cells", "valid", "denoising", "tokens", "failed:"]
    assert found.denoising_steps.mean >= 2  # of the items that ran
    broken = evaluate(tiny, Sudoku(), [good, good], stopping=Failing(), **FEW)
    assert [outcome.error for outcome in broken.outcomes] == ["not today"] * 2
    assert "Failing" in broken.to_dict()["settings"]["stopping"]
    assert not tiny.engine.busy


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 1}, "at most 1 step per canvas"),
        ({"write": "tokens"}, "token by token"),
        ({"write": "verified"}, "token by token with verified drafts of 16 tokens"),
        ({"write": "verified", "canvas_length": 8}, "token by token with verified drafts of 8 tokens"),
    ],
)
def test_summary_names_the_way_of_writing(tiny, puzzles, options, words):
    found = evaluate(tiny, Sudoku(), puzzles["test"][:1], max_new_tokens=4, **options)
    assert found.summary().splitlines()[0] == f"sudoku, 1 item, {words}"


def test_invalid_settings_and_busy_engines_are_rejected(tiny, puzzles):
    items = puzzles["test"][:1]
    for options, message in (({"colour": 1}, "colour"), ({"steps": 0}, "steps"), ({"preset": "best"}, "preset")):
        with pytest.raises(InputError, match=message):
            evaluate(tiny, Sudoku(), items, **options)
    with pytest.raises(InputError, match="no items"):
        evaluate(tiny, Sudoku(), [])
    with pytest.raises(InputError, match="batch"):
        evaluate(tiny, Sudoku(), items, batch=0)
    stream = tiny.stream("abc", **FEW)
    next(stream)
    with pytest.raises(InputError, match="open requests"):
        evaluate(tiny, Sudoku(), items, **FEW)
    stream.close()
    assert len(evaluate(tiny, Sudoku(), items, **FEW).outcomes) == 1  # a closed stream does not block it


def test_an_interrupted_evaluation_leaves_the_engine_usable(tiny, puzzles):
    slow = Item(name="slow", prompt="1 " * 3000, expected="", meta={})  # still in prefill when the first item ends

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(tiny, Sudoku(), [puzzles["test"][0], slow], progress=stop, **FEW)
    tiny.engine.step()
    assert not tiny.engine.busy  # running requests were cancelled
    again = evaluate(tiny, Sudoku(), puzzles["test"][:2], **FEW)
    assert not again.failures


# --- plots ----------------------------------------------------------------------------------------------------------


def test_a_plot_shows_every_step_limit(tiny, puzzles):
    found = [evaluate(tiny, Sudoku(), puzzles["test"][:2], steps=limit, max_new_tokens=16) for limit in (1, 2)]
    assert [evaluation.settings["steps"] for evaluation in found] == [1, 2]
    assert found[0].fingerprint == found[1].fingerprint
    line = series("tiny", found, "cells")
    assert [point.x for point in line.points] == [1, 2]
    assert [point.y for point in line.points] == [evaluation.scores["cells"].mean for evaluation in found]
    assert "steps taken" in svg([line], title="t", y_label="cells")


def test_a_plot_of_losses_has_its_own_y_axis():
    text = svg([Series("loss", [Point(1, 9), Point(2, 4), Point(3, 1)])], title="t", y_label="loss", top=4)
    root = ElementTree.fromstring(text)
    tag = "{http://www.w3.org/2000/svg}"
    assert {"0", "0.8", "4"} <= {node.text for node in root.iter(f"{tag}text")}
    assert "%" not in text and "1 at 3" in root.find(f"{tag}desc").text
    marks = [node for node in root.iter(f"{tag}path") if node.get("class") == "point" and len(node)]
    beyond, at_top, low = (float(node.get("transform")[10:-1].split()[1]) for node in marks)
    assert beyond == at_top < low  # points beyond the axis are drawn at its end


def test_a_plot_is_well_formed_and_has_every_point_name_and_interval():
    curves = [
        Series(name, [Point(x, y, max(y - 0.1, 0), y + 0.1) for x, y in zip((1, 2, 4, 48), ys, strict=True)])
        for name, ys in (("a < b & c", (0, 0.25, 0.5, 1)), ("second", (0.125, 0.5, 0.75, 0.875)))
    ]
    text = svg([*curves, Series("bare", [Point(4, 0.3)])], title='Sudoku & "more"', y_label="exact")
    root = ElementTree.fromstring(text)
    tag = "{http://www.w3.org/2000/svg}"
    words = [node.text for node in root.iter(f"{tag}text")]
    assert root.find(f"{tag}title").text == words[0] == 'Sudoku & "more"'
    assert "25.0 % at 2" in root.find(f"{tag}desc").text
    assert {"a < b & c", "second", "bare", "0%", "100%", "1", "2", "4", "48", "exact"} <= set(words)
    marks = [node for node in root.iter(f"{tag}path") if node.get("class") == "point" and len(node)]
    titles = [node[0].text for node in marks]
    for curve, x in itertools.product(curves, range(4)):
        point = curve.points[x]
        assert any(t.startswith(f"{curve.name}, {point.x:g}: {100 * point.y:.1f} % (") for t in titles)
    assert len(marks) == 9
    assert sum(node.get("class") == "bar" for node in root.iter()) == 8
    places = [tuple(map(float, node.get("transform")[10:-1].split())) for node in marks]
    assert places[0][1] > places[1][1] > places[2][1] > places[3][1]  # better is higher
    assert places[0][0] < places[1][0] < places[2][0] < places[3][0]
    assert all(0 < x < 640 and 0 < y < 420 for x, y in places)
    assert "prefers-color-scheme:dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched
