"""The decide task: decisions, their confidence, and how well it is calibrated."""

import pytest

from gesso.eval import Decide
from gesso.eval.evaluate import Evaluation, Outcome, evaluate

OPTIONS = {"steps": 2, "max_new_tokens": 32}


def evaluation(*pairs: tuple[float, float]) -> Evaluation:
    outcomes = tuple(
        Outcome(name="x", seed=0, expected="", scores={"right": right}, seconds=0, confidence=confidence)
        for confidence, right in pairs
    )
    about = {"task": "decide", "data": {}, "fingerprint": "", "model": {}, "settings": {"steps": 1}}
    return Evaluation(**about, seed=0, seconds=0, outcomes=outcomes)


def test_calibration_error_compares_confidence_with_accuracy_by_bin():
    assert evaluation((0.75, 1), (0.75, 1), (0.75, 1), (0.75, 0)).calibration_error == 0
    assert evaluation((0.95, 1), (0.95, 0), (0.55, 1), (0.55, 0)).calibration_error == pytest.approx(0.25)
    assert evaluation((1.0, 1), (1.0, 1)).calibration_error == 0


def test_items_are_decided_without_generating_and_constrained_ones_are_generated(tiny):
    task = Decide()
    items = list(task.items("validation", 2, seed=0))
    found = evaluate(tiny, task, items, **OPTIONS)
    for item, outcome in zip(items, found.outcomes, strict=True):
        assert outcome.error is None and outcome.output in item.choices
        assert outcome.confidence is not None and outcome.confidence >= 1 / len(item.choices)
        assert outcome.denoising_steps == 1
    assert found.summary().splitlines()[0] == "decide, 2 items"
    written = evaluate(tiny, task, items[:1], constrained=True, **OPTIONS)
    assert written.outcomes[0].output in items[0].choices and written.calibration_error is None
