"""The time of a step by operation."""

import json

import pytest

from benchmarks import step
from examples.samplers.rules import Credit
from gesso.errors import InputError


def test_a_step_is_measured_by_operation(capsys, tiny_directory):
    step.main(["-m", str(tiny_directory), "--device", "cpu", "--prompt", "20", "--json"])
    found = json.loads(capsys.readouterr().out)
    names = [row["name"] for row in found["rows"]]
    assert "aten::mm" in names, "matrix products are included"
    assert [row["ms"] for row in found["rows"]] == sorted((row["ms"] for row in found["rows"]), reverse=True)
    named = sum(row["ms"] for row in found["rows"])
    assert named == pytest.approx(found["ms_per_step"] - found["between_ms"], rel=0.05), "nothing is counted twice"


def test_concurrent_kernels_count_in_full_and_gaps_are_reported():
    spans = [step.Span("a", 0, 10, 10), step.Span("b", 5, 12, 7), step.Span("a", 20, 26, 6)]
    found = step.summary(spans, steps=2)
    assert found["rows"] == [
        {"name": "a", "calls": 1.0, "us": 8.0, "ms": 0.008},
        {"name": "b", "calls": 0.5, "us": 7.0, "ms": 0.0035},
    ]
    assert (found["ms_per_step"], found["between_ms"], found["calls"]) == (0.013, 0.004, 1.5)


def test_the_steps_of_a_rule_and_of_adapters_are_measured(tiny_directory, submitted):
    rule = ("--sampler", "examples.samplers.rules:Credit", "--batch", "2", "--adapters", "1", "--rank", "4")
    step.main(["-m", str(tiny_directory), "--device", "cpu", "--prompt", "9", *rule])
    assert [(request.diffusion.sampler, request.adapter) for request in submitted] == [(Credit(), "random-0")] * 2


@pytest.mark.parametrize("sampler", ["gibbs", "autoregressive"])
def test_a_sampler_without_canvases_is_rejected_before_loading(sampler):
    with pytest.raises(InputError, match=sampler):
        step.main(["-m", "no-such-model", "--sampler", sampler])
