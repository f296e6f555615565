"""The counter of weight bytes: equal to the weights of loaded models and, nearly, to bits per value."""

from dataclasses import replace
from math import prod

import pytest
import torch

from gesso.checkpoint import random_weights
from gesso.checkpoint.load import load
from gesso.checkpoint.parameters import empty_model
from gesso.checkpoint.quantize import convert, export_compressed_tensors
from gesso.checkpoint.quantize.formats import format_of, is_expert
from gesso.checkpoint.source import open_source
from gesso.checkpoint.streamed import streamed
from gesso.errors import InputError
from gesso.memory.budget import Budget
from gesso.memory.weights import config_sizes, loaded_bytes, loaded_sizes, source_sizes, unpacks
from gesso.model.config import Config
from tests.tiny import make

CPU = torch.device("cpu")
REAL = random_weights.config_of("26b-a4b")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make(tmp_path_factory.mktemp("tiny") / "model")


def total(sizes):
    return sum(size.nbytes for size in sizes.values())


@pytest.mark.parametrize("quantize", ["none", "fp8", "int4", "nvfp4"])
@pytest.mark.parametrize("on_cpu", [False, True])
def test_counted_bytes_are_those_of_the_loaded_model(directory, quantize, on_cpu):
    source = open_source(directory)
    packs = None if quantize == "none" else quantize
    model = load(source, CPU, torch.float32, packs, on_cpu=on_cpu, text_only=True)
    counted = config_sizes(source.config, quantize, 4, on_cpu=on_cpu)
    assert {name: size.nbytes for name, size in counted.items()} == loaded_sizes(model)
    assert total(counted) == loaded_bytes(model) > 0


@pytest.mark.parametrize("quantize", ["fp8", "int4", "nvfp4"])
def test_a_quantized_checkpoint_counts_as_its_quantization(directory, quantize):
    config = Config.from_directory(directory)
    for on_cpu in (False, True):
        assert config_sizes(config.quantized(quantize), "none", 2, on_cpu=on_cpu) == config_sizes(config, quantize, 2)


@pytest.mark.parametrize(
    ("quantize", "bits", "tolerance"), [("fp8", 8, 0), ("int4", 4.5, 8.1e-6), ("nvfp4", 4.5, 8.1e-6)]
)
def test_the_26b_has_the_bits_per_value_of_its_format(quantize, bits, tolerance):
    expected = 0
    for name, parameter in empty_model(REAL).named_parameters():
        if format_of(name, parameter.shape, quantize) is None:
            expected += 2 * parameter.numel()
        elif bits == 8 or not is_expert(name):
            expected += parameter.numel() + 4 * prod(parameter.shape[:-1])
        else:
            expected += parameter.numel() * bits / 8
    counted = total(config_sizes(REAL, quantize, 2))
    assert 0 <= counted - expected <= tolerance * expected


@pytest.mark.parametrize("quantize", ["fp8", "int4", "nvfp4"])
def test_checkpoints_of_other_tools_count_as_what_is_loaded(directory, tmp_path, quantize):
    export_compressed_tensors.quantize(str(directory), tmp_path / "other", quantize)
    source = open_source(tmp_path / "other")
    assert source.is_foreign
    kept, unpacked = (load(source, CPU, torch.float32, unpack=unpack, text_only=True) for unpack in (False, True))
    assert total(source_sizes(source, 4, on_gpu=False, unpacked=True)) == loaded_bytes(unpacked)
    assert total(source_sizes(source, 4, on_gpu=False)) == pytest.approx(loaded_bytes(kept), rel=0.1)
    assert unpacks(source, 4, 10**9) and not unpacks(source, 4, 10**5)
    assert not unpacks(open_source(directory), 4, 10**9)


@pytest.mark.parametrize("quantize", ["none", "fp8", "int4", "nvfp4"])
def test_streamed_bytes_are_those_in_host_memory(quantize):
    shape = random_weights.config_of(
        "mini",
        moe_intermediate_size=128,
        num_hidden_layers=6,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
    )
    layers = (0, 2, 3)
    packs = None if quantize == "none" else quantize
    model = random_weights.make(shape, CPU, torch.bfloat16, packs, layers)
    held, budget = streamed(model), Budget(shape, 0, 2, 256)
    assert held is not None and budget.streamed(quantize, layers) == held.nbytes
    resident = budget.weights(quantize) - budget.streamed(quantize, layers)
    assert budget.weights(quantize, layers) == resident + held.slot_bytes


def test_a_format_that_cannot_store_a_matrix_is_no_choice():
    shape = random_weights.config_of("mini")
    with pytest.raises(InputError, match="cannot be stored as int4"):
        config_sizes(shape, "int4", 2)
    assert Budget(shape, 0, 2, 256).precisions() == ["none", "fp8"]
    assert "int4" in Budget(shape, 0, 4, 256, on_cpu=True).precisions(), "a CPU stores such a matrix in fp8"
    assert "int4" in Budget(replace(REAL), 0, 2, 256).precisions()


def test_quantized_files_have_the_counted_bytes(directory, tmp_path):
    report = convert.quantize(str(directory), tmp_path / "packed", "int4")
    counted = total(config_sizes(Config.from_directory(directory), "int4", 4))
    assert counted <= report.bytes <= counted + 40_000, "headers and the vision tower come on top"
