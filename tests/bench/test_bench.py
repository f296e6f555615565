"""`gesso bench`, on shapes that take about a second."""

import json
from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console

from examples.samplers.rules import Credit
from gesso.bench import cpu_peers, step
from gesso.bench import model as generation
from gesso.bench import train as bench
from gesso.checkpoint import random_weights
from gesso.checkpoint.streamed import streamed
from gesso.engine.engine import Engine
from gesso.errors import InputError
from gesso.memory.weights import token_bytes
from gesso.train.objective import Objective

TINY = {
    "vocab_size": 384, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16, "num_global_key_value_heads": 2, "num_experts": 4,
    "top_k_experts": 2, "moe_intermediate_size": 16, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip


@pytest.mark.parametrize("name", bench.SHAPES)
def test_training_is_measured_for_every_shape(monkeypatch, name):
    shape = replace(bench.shape_of(name, examples=2, prompt=32, response=32), dtype=torch.float32)
    monkeypatch.setitem(random_weights.SHAPES, name, TINY)
    found = bench.measure(name, shape, steps=2, device=torch.device("cpu"), memory=0)
    assert found["tokens_a_step"] == 2 * (64 + 256)
    assert found["tokens_per_second"] == pytest.approx(found["tokens_a_step"] / found["seconds_a_step"])
    assert found["loss_last"] < found["loss_first"], "the steps train the model"
    assert (found["trained"] < found["active"] / 2) is (shape.lora is not None)


def test_half_of_the_examples_are_conditioned_on_a_first_pass(monkeypatch):
    monkeypatch.setitem(random_weights.SHAPES, "mini", TINY)
    first_passes = []
    hidden = Objective.hidden
    monkeypatch.setattr(
        Objective, "hidden", lambda self, batch, *rest: first_passes.append(not torch.is_grad_enabled())
        or hidden(self, batch, *rest),
    )  # fmt: skip
    bench.measure("mini", bench.shape_of("mini", examples=1, prompt=8, response=8), 4, torch.device("cpu"), memory=0)
    assert (sum(first_passes), len(first_passes)) == (3, 9)


def test_an_unknown_shape_is_rejected():
    with pytest.raises(InputError, match="mini, 26b-a4b"):
        bench.shape_of("huge")


def test_a_shape_without_an_adapter_has_no_rank():
    with pytest.raises(InputError, match="--rank"):
        bench.shape_of("mini", rank=8)


def test_the_cost_of_a_constraint_is_measured(main, monkeypatch):
    monkeypatch.setattr("gesso.bench.constraints.VOCABULARY", 4096)
    monkeypatch.setattr("gesso.bench.constraints.CANVAS", 32)
    found = json.loads(main("bench", "constraints", "--fields", "3", "--steps", "2").out)
    assert found["vocabulary"] == 4096 and found["states"] > 50
    assert all(
        found[name] > 0 for name in ("search_ms", "search_ms_worst", "candidates_ms", "compile_seconds", "step_ms")
    )
    assert {"any_text_share", "any_line_share"} <= found.keys()


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
    assert "adapters" not in shown.getvalue()


def test_generation_is_measured_with_adapters_in_turn(main, tiny_directory, monkeypatch):
    submitted = []

    def submit(engine, request, real=Engine.submit):
        submitted.append(request.adapter)
        return real(engine, request)

    monkeypatch.setattr(Engine, "submit", submit)
    small = ("-m", str(tiny_directory), "--device", "cpu", "--batches", "3", "--prompt", "9", "--new", "4")
    found = json.loads(main("bench", *small, "--adapters", "2", "--rank", "4", "--json").out)
    assert submitted[-3:] == ["random-0", "random-1", "random-0"] and None in submitted
    assert (found["adapters"], found["rank"]) == (2, 4) and found["batches"][0]["adapted_ms_a_step"] > 0
    generation.render(found, Console(file=(shown := StringIO()), width=100))
    assert "with 2 adapters of rank 4" in shown.getvalue()


def test_the_sampler_of_a_measurement_is_chosen_by_name(main, tiny_directory, monkeypatch):
    submitted = set()

    def submit(engine, request, real=Engine.submit):
        submitted.add(request.diffusion.sampler)
        return real(engine, request)

    monkeypatch.setattr(Engine, "submit", submit)
    rule = ("--sampler", "examples.samplers.rules:Credit")
    small = ("-m", str(tiny_directory), "--device", "cpu", "--batches", "1", "--prompt", "9", *rule)
    assert json.loads(main("bench", *small, "--new", "4", "--json").out)["sampler"] == "Credit"
    assert submitted == {Credit(), "entropy-bound"}, "prompts are read with the default"
    submitted.clear()
    main("bench", "step", *small)
    assert submitted == {Credit()}


@pytest.mark.parametrize("sampler", ["gibbs", "autoregressive"])
@pytest.mark.parametrize("what", ["model", "step"])
def test_a_sampler_without_canvases_is_rejected_before_loading(main, what, sampler):
    done = main("bench", what, "-m", "no-such-model", "--sampler", sampler)
    assert done.code == 2 and sampler in done.err and "no-such-model" not in done.err


def test_a_large_model_on_a_cpu_is_measured_token_by_token_and_by_canvas_length(main, monkeypatch):
    monkeypatch.setitem(random_weights.SHAPES, "26b-a4b", TINY | {"moe_intermediate_size": 32})
    monkeypatch.setattr(generation, "LEAST_BYTES", 1)
    asked = ("-m", "random:26b-a4b", "--quantize", "int4", "--device", "cpu", "--prompt", "9", "--new", "5")
    found = json.loads(main("bench", *asked, "--json").out)
    assert found["quantized"] == "int4" and 0 < found["GB_per_token"] < found["weights_GB"]
    assert [row["canvas"] for row in found["canvases"]] == [16, 64, 256]
    read = found["autoregressive_tokens_per_second"] * found["GB_per_token"]
    assert found["share_of_bandwidth"] == pytest.approx(read / found["read_GBps"])
    assert found["resident_GB"] <= found["peak_resident_GB"] and found["prefill"][0]["tokens_per_second"] > 0
    generation.render(found, Console(file=(shown := StringIO()), width=100))
    assert "GB read per token" in " ".join(shown.getvalue().split())
    monkeypatch.setattr(cpu_peers, "CUTS", (1, 2))
    assert "extrapolated from 1 and 2 of 2 layers" in " ".join(
        main("bench", *asked, "--peer", "transformers").out.split()
    )


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


def test_a_step_is_measured_by_operation(main, tiny_directory):
    asked = ("bench", "step", "-m", str(tiny_directory), "--device", "cpu", "--prompt", "20")
    found = json.loads(main(*asked, "--json").out)
    names = [row["name"] for row in found["rows"]]
    assert "aten::mm" in names, "matrix products are included"
    assert [row["ms"] for row in found["rows"]] == sorted((row["ms"] for row in found["rows"]), reverse=True)
    named = sum(row["ms"] for row in found["rows"])
    assert named == pytest.approx(found["ms_a_step"] - found["between_ms"], rel=0.05), "nothing is counted twice"


def test_concurrent_kernels_count_in_full_and_gaps_are_reported():
    spans = [step.Span("a", 0, 10, 10), step.Span("b", 5, 12, 7), step.Span("a", 20, 26, 6)]
    found = step.summary(spans, steps=2)
    assert found["rows"] == [
        {"name": "a", "calls": 1.0, "us": 8.0, "ms": 0.008},
        {"name": "b", "calls": 0.5, "us": 7.0, "ms": 0.0035},
    ]
    assert (found["ms_a_step"], found["between_ms"], found["calls"]) == (0.013, 0.004, 1.5)


def test_bench_step_takes_one_batch_size(main, tiny_directory):
    done = main("bench", "step", "-m", str(tiny_directory), "--batches", "1,2")
    assert done.code == 2 and "one batch size" in done.err


def test_invalid_batch_sizes_are_rejected(main):
    with pytest.raises(InputError, match="such as 1,4"):
        generation.bench(
            None, device="cpu", dtype=None, quantize=None, memory=0.9, batches="1;2", prompt=None, new=None, peer=None
        )


def test_the_tested_tiling_is_the_one_that_runs():
    kernels = pytest.importorskip("gesso.bench.kernels")
    experts, linear = kernels.experts, kernels.linear
    tried = 0
    for name, candidate in kernels.candidates().items():
        for tiling in candidate.tilings:
            with kernels._tiled(candidate, tiling):
                table, key = candidate.table, candidate.key
                if table in (experts.UP, experts.DOWN):
                    matrices = experts.Matrices(torch.empty(1, 1, 1, dtype=key))
                    found = [experts.choose_tiling(table, matrices, tokens) for tokens in (1, 256, 2048)]
                elif table in (linear.PLAIN, linear.GATED):
                    found = [linear.choose_tiling(table, tokens, [2816], key)[0] for tokens in (1, 256, 2048)]
                else:
                    found = [kernels.experts_four_bit.choose_tiling(*key, tokens) for tokens in (1, 256, 2048)]
                assert set(found) == {tiling}, name
                tried += 1
    assert tried > 100


def test_the_floor_of_streamed_experts_counts_every_layer():
    config, layers = random_weights.config_of("mini"), range(3)
    resident, model = (
        random_weights.make(config, torch.device("cpu"), torch.float32, None, stream) for stream in ((), layers)
    )
    held = streamed(model)
    assert generation.step_bytes(model) == generation.step_bytes(resident)
    assert held.nbytes > held.slot_bytes and generation.copy_speed(held) > 0
