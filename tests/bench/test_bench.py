"""`gesso bench`, on shapes that take about a second."""

import importlib.util
import json
from dataclasses import replace
from io import StringIO
from typing import ClassVar

import pytest
import torch
from rich.console import Console

from examples.samplers.rules import Credit
from gesso.bench import model as generation
from gesso.checkpoint import random_weights
from gesso.checkpoint.streamed import streamed
from gesso.errors import InputError
from gesso.memory.weights import token_bytes
from tests.bench.tiny_shape import TINY


def test_generation_is_measured_and_plotted(main, tiny_directory, tmp_path):
    plot = tmp_path / "bench.svg"
    small = ("-m", str(tiny_directory), "--device", "cpu", "--batches", "1,2", "--prompt", "20", "--new", "4")
    found = json.loads(main("bench", *small, "--json", "--plot", str(plot)).out)
    assert [row["batch"] for row in found["batches"]] == [1, 2]
    assert all(row["passes"] >= found["steps"] for row in found["batches"]), "no text ends early"
    assert found["floor_ms"] > 0 and found["autoregressive_tokens_per_second"] > 0
    assert plot.read_text().startswith("<svg")
    generation.render(found, Console(file=(shown := StringIO()), width=100))
    assert "times the floor" in shown.getvalue() and "autoregressive" in shown.getvalue()


class Noted(Credit):
    """A sampler that notes the lengths of the canvases that it is applied to."""

    lengths: ClassVar[set[int]] = set()

    def __call__(self, canvas_C, prediction, moment):
        self.lengths.add(len(canvas_C))
        return super().__call__(canvas_C, prediction, moment)


def test_the_sampler_of_a_measurement_is_chosen_by_name(main, tiny_directory):
    rule = ("--sampler", "tests.bench.test_bench:Noted")
    small = ("-m", str(tiny_directory), "--device", "cpu", "--batches", "1", "--prompt", "9", *rule)
    assert json.loads(main("bench", *small, "--new", "4", "--json").out)["sampler"] == "Noted"
    assert 4 in Noted.lengths and 1 not in Noted.lengths, "prompts are read with the default"


@pytest.mark.parametrize("sampler", ["gibbs", "autoregressive"])
def test_a_sampler_without_canvases_is_rejected_before_loading(main, sampler):
    done = main("bench", "-m", "no-such-model", "--sampler", sampler)
    assert done.code == 2 and sampler in done.err and "no-such-model" not in done.err


def test_a_large_model_on_a_cpu_is_measured_token_by_token_and_by_canvas_length(main, any_model_is_large, monkeypatch):
    monkeypatch.setitem(random_weights.SHAPES, "26b-a4b", TINY | {"moe_intermediate_size": 32})
    asked = ("-m", "random:26b-a4b", "--quantize", "int4", "--device", "cpu", "--prompt", "9", "--new", "5")
    found = json.loads(main("bench", *asked, "--json").out)
    assert found["quantized"] == "int4" and 0 < found["GB_per_token"] < found["weights_GB"]
    assert [row["canvas"] for row in found["canvases"]] == [16, 64, 256]
    read = found["autoregressive_tokens_per_second"] * found["GB_per_token"]
    assert found["share_of_bandwidth"] == pytest.approx(read / found["read_GBps"])
    assert found["resident_GB"] <= found["peak_resident_GB"] and found["prefill"][0]["tokens_per_second"] > 0
    generation.render(found, Console(file=(shown := StringIO()), width=100))
    assert "GB read per token" in " ".join(shown.getvalue().split())


@pytest.mark.parametrize("what", ["step", "kernels", "images", "train", "constraints", "schemas"])
def test_a_subject_that_has_moved_is_named_with_its_module(main, what):
    done = main("bench", what)
    assert done.code == 2 and f"python -m benchmarks.{what}" in " ".join(done.err.split())
    assert importlib.util.find_spec(f"benchmarks.{what}")


def test_a_token_reads_its_experts_the_causal_layers_and_the_head():
    tied, untied = (random_weights.config_of("mini") for _ in range(2))
    untied = replace(untied, tie_word_embeddings=False)
    sizes = {
        "decoder.embed_tokens.weight": 100, "decoder.layers.0.experts.down_proj": 1000,
        "decoder.layers.0.mlp.up_proj.weight": 10, "self_conditioning.up_proj.weight": 7,
    }  # fmt: skip
    chosen = 1000 * tied.top_k_experts // tied.num_experts
    assert token_bytes(sizes, tied) == 100 + chosen + 10
    causal = {name.replace("decoder", "encoder"): size for name, size in sizes.items()}
    assert token_bytes(sizes | causal | {"lm_head": 100}, untied) == 100 + chosen + 10


def test_invalid_batch_sizes_are_rejected(main):
    with pytest.raises(InputError, match="such as 1,4"):
        generation.bench(
            None, device="cpu", dtype=None, quantize=None, memory=0.9, batches="1;2", prompt=None, new=None
        )


def test_the_floor_of_streamed_experts_counts_every_layer():
    config, layers = random_weights.config_of("mini"), range(3)
    resident, model = (
        random_weights.make(config, torch.device("cpu"), torch.float32, None, stream) for stream in ((), layers)
    )
    held = streamed(model)
    assert generation.step_bytes(model) == generation.step_bytes(resident)
    assert held.nbytes > held.slot_bytes and generation.copy_speed(held) > 0
