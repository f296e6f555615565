"""Steps under a JSON schema, on a shape that takes seconds."""

import pytest

import gesso
from benchmarks import constrained
from gesso.checkpoint import random_weights
from gesso.engine.engine import Engine
from gesso.engine.runner import SearchTimes
from tests.backends.passes import CapturesPlainly
from tests.bench.test_bench import TINY


def test_constrained_and_free_steps_are_measured(monkeypatch):
    monkeypatch.setitem(random_weights.SHAPES, "mini", TINY)
    g = gesso.load("random:mini", device="cpu", max_batch=2)
    whole = SearchTimes(beside_pass=60.0)  # every search ends beside the next pass
    g.engine = Engine(g.model, g.decode, max_batch=2, backend=CapturesPlainly(g.model), search_times=whole)
    found = constrained.measure(g, [1], prompt=4, steps=12, beside=1, warm=0)
    (alone,) = found["alone"]
    assert alone["free_ms"] > 0 and alone["times"] == pytest.approx(alone["constrained_ms"] / alone["free_ms"])
    beside = found["beside"]
    assert beside["constrained_ms"] >= beside["free_ms"] > 0, "a constrained request sits out passes of free ones"
