"""The memory of training at the shape of the 26B."""

import json

import pytest

from tests.gpu.device import DRY_RUN
from tests.gpu.test_training import run_module

pytestmark = pytest.mark.gpu


@pytest.mark.skipif(DRY_RUN, reason="needs the real size")
def test_int4_trains_an_adapter_of_attention_and_mlp_within_18_gb(tmp_path, record_property):
    """With examples of 2,048 tokens of text and a canvas; with the CUDA context, as the driver counts the process."""
    options = ("--quantize", "int4", "--targets", "attention,mlp", "--batch", "1", "--prompt", "1792", "--new", "256")
    limits = ("--steps", "2", "--memory", "18GB")
    found = json.loads(run_module("benchmarks.train", "--shape", "26b-a4b", *options, *limits, cwd=tmp_path))
    record_property("on_the_card_GB", round(found["memory_of_card_GB"], 2))
    record_property("tokens_per_second", round(found["tokens_per_second"]))
    record_property("peak_GB", round(found["peak_memory_GB"], 2))
    assert found["memory_of_card_GB"] <= 18.0
    assert found["tokens_a_step"] == 2304 and found["loss_last"] < found["loss_first"]
