"""Paired differences: their intervals, and `gesso eval --against`."""

import json
import math
import random

import pytest

from gesso import InputError
from gesso.eval.estimate import Z
from gesso.eval.paired import ComparedRun, compare, difference, ratio, score_difference, student, tango


def test_students_quantiles_match_published_tables():
    for freedom, quantile in ((3, 3.1824), (5, 2.5706), (10, 2.2281), (30, 2.0423), (120, 1.9799)):
        assert student(freedom) == pytest.approx(quantile, rel=2e-3)


def test_tangos_interval_is_where_the_score_test_rejects():
    """At a difference of 0 the test is McNemar's, and without any change the interval has a closed form."""
    for count in (10, 100, 500):
        same = tango(0, 0, count)
        assert (same.low, same.high) == pytest.approx((-Z * Z / (count + Z * Z), Z * Z / (count + Z * Z)))
    for gained, lost in ((12, 2), (9, 1), (7, 3), (30, 12)):
        found, mirrored = tango(gained, lost, 60), tango(lost, gained, 60)
        assert (found.low > 0) == ((gained - lost) / math.sqrt(gained + lost) > Z)
        assert (found.low, found.high) == pytest.approx((-mirrored.high, -mirrored.low))


def test_tangos_interval_covers_the_truth_at_small_counts():
    rng, covered, runs = random.Random(0), 0, 3000
    for _ in range(runs):
        draws = rng.choices(("gained", "lost", "same"), (0.10, 0.04, 0.86), k=30)
        found = tango(draws.count("gained"), draws.count("lost"), 30)
        covered += found.low <= 0.06 <= found.high
    assert 0.935 <= covered / runs <= 0.985


def test_differences_are_paired_and_have_intervals_for_their_kind_of_value():
    before = [random.Random(i).random() * 100 for i in range(40)]
    after = [value - 1 + (i % 2) / 10 for i, value in enumerate(before)]
    found = difference(before, after)
    assert found.mean == pytest.approx(-0.95) and found.high < -0.9 and found.low > -1  # the items differ by far more
    assert score_difference([0, 1, 1], [1, 1, 1]) == tango(1, 0, 3)
    assert score_difference([0.5] * 3, [1.0] * 3).mean == 0.5
    assert (difference([1, 2], [2, 3]).low, difference([], []).mean) == (None, 0)
    halved = ratio(before, [value / 2 for value in before])
    assert (halved.mean, halved.low, halved.high) == pytest.approx((0.5, 0.5, 0.5))
    constant = ratio([10.0] * 20, [5.0, 7.0] * 10)
    assert constant.mean == 0.6 and constant.high - 0.6 == pytest.approx(student(19) * 0.1 * math.sqrt(1 / 19))


def test_ratios_and_differences_agree_on_what_is_beyond_noise():
    rng, verdicts = random.Random(0), set()
    for _ in range(300):
        before = [rng.uniform(5, 25) for _ in range(8)]
        after = [value * rng.uniform(0.5, 1.3) for value in before]
        verdicts.add(beyond := difference(before, after).high < 0)
        assert (ratio(before, after).high < 1) == beyond
    assert verdicts == {True, False}
    assert ratio([0.1, 0.1, 50.0], [1.0, 2.0, 3.0]).low is None


def run(scores: list[float], passes: list[float | None], fingerprint: str = "a") -> ComparedRun:
    return ComparedRun(task="t", fingerprint=fingerprint, scores={"exact": scores}, passes=passes)


def test_failed_items_count_in_scores_and_not_in_passes():
    found = compare(run([0, 1, 1, 1, 1], [None, 4, 4, 4, 4]), run([1, 1, 1, 1, 1], [9, 2, 2, 2, 2]))
    assert (found.scores["exact"].mean, found.passes.mean, found.passes_ratio.mean) == (0.2, -2, 0.5)
    assert "-50 %" in found.summary()


def test_different_items_are_not_compared():
    with pytest.raises(InputError, match="different items"):
        compare(run([1.0], [1]), run([1.0], [1], "b"))


# --- command line -----------------------------------------------------------------------------------------------------

FEW = ["eval", "sudoku", "--count", "3", "--max-new-tokens", "16"]


def test_eval_prints_the_difference_to_an_earlier_run(main, tiny_directory, monkeypatch, tmp_path):
    monkeypatch.setenv("GESSO_MODEL", str(tiny_directory))
    earlier = tmp_path / "earlier.json"
    fixed = ["--stopping", "fixed"]
    earlier.write_text(main(*FEW, *fixed, "--steps", "3", "--json").out)
    done = main(*FEW, *fixed, "--steps", "1", "--against", str(earlier))
    assert "paired over 3 items" in done.out and "points" in done.out
    (found,) = json.loads(main(*FEW, *fixed, "--steps", "1", "--against", str(earlier), "--json").out)
    assert found["against"]["passes"]["mean"] <= -2
    both = json.loads(main(*FEW, *fixed, "--steps", "3", "--steps", "1", "--against", str(earlier), "--json").out)
    assert both[0]["against"]["passes"]["mean"] == 0 > both[1]["against"]["passes"]["mean"]


def test_unsuitable_earlier_runs_are_rejected_before_a_model_is_loaded(main, tiny_directory, monkeypatch, tmp_path):
    good = main(*FEW, "-m", str(tiny_directory), "--steps", "1", "--json").out
    monkeypatch.setenv("GESSO_MODEL", "/nowhere")
    path = tmp_path / "earlier.json"
    for text, options, message in (
        ("{", [], "not JSON"),
        ("[]", [], "expected a list of evaluations"),
        ('[{"task": 1}]', [], "expected an evaluation"),
        (good, ["--seed", "1"], "different items"),
        (good.rstrip()[:-1] + "," + good.strip()[1:], [], "one per --steps"),
    ):
        path.write_text(text)
        done = main(*FEW, *options, "--against", str(path))
        assert (done.code, message in done.err) == (2, True), done.err
