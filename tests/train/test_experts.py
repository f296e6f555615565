"""Grouped experts against the plain ones: outputs and all gradients."""

import math

import pytest
import torch

from gesso.adapters.lora import AdaptedExperts, Lora
from gesso.checkpoint import random_weights
from gesso.checkpoint.quantize import packed as packed_matrices
from gesso.checkpoint.quantize.formats import FORMATS
from gesso.model.experts import Experts, route
from gesso.train.experts import GroupedExperts, sort_pairs

NAMES = ("gate_up_proj", "down_proj")
T, E, K, H, WIDTH = 40, 12, 2, 64, 32


def experts(rank=None, format=None, hidden=H, width=WIDTH):
    torch.manual_seed(0)
    module = AdaptedExperts(
        Experts(
            random_weights.config_of(
                "mini", num_experts=E, top_k_experts=K, hidden_size=hidden, moe_intermediate_size=width
            )
        )
    )
    for name in NAMES:
        weight = torch.nn.init.normal_(getattr(module, name).data, std=0.2)
        if format:
            delattr(module, name)
            setattr(module, name, FORMATS[format].quantize(name, weight))
        if rank:
            lora = Lora(weight, rank, alpha=16.0)
            for factor in (lora.A, lora.B):
                torch.nn.init.normal_(factor, std=0.1)
            getattr(module, f"{name}_adapters").put("x", lora)
            getattr(module, f"{name}_adapters").active = "x"
    return module


def inputs(chosen=E, hidden=H):
    """Return tokens and routes to the first `chosen` experts: the others have no tokens."""
    torch.manual_seed(1)
    scores = torch.randn(T, E).masked_fill(torch.arange(E) >= chosen, -1e9)
    return torch.randn(T, hidden), *route(scores, torch.rand(E) + 0.5, K)


def results(module, x, index, weight):
    """Return the output and the gradients of tokens, routing weights and parameters."""
    module.zero_grad()
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = module(x, index, weight)
    (y * torch.sin(torch.arange(y.numel()).view_as(y))).sum().backward()
    return [y.detach(), x.grad, weight.grad, *(p.grad.clone() for p in module.parameters())]


@pytest.mark.parametrize("chosen", [E, 3])
@pytest.mark.parametrize("rank", [None, 3, 8])
def test_grouped_experts_equal_plain_ones(rank, chosen):
    plain = experts(rank)
    for found, expected in zip(
        results(GroupedExperts(plain), *inputs(chosen)), results(plain, *inputs(chosen)), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("format", ["fp8", "int4", "nvfp4"])
def test_grouped_experts_equal_plain_ones_on_quantized_weights(format):
    plain = experts(8, format)
    for found, expected in zip(results(GroupedExperts(plain), *inputs()), results(plain, *inputs()), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


def test_no_unpacked_weight_is_kept_for_the_backward_pass():
    saved = []
    module = GroupedExperts(experts(8, "int4"))
    x, index, weight = inputs()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        module(x.requires_grad_(), index, weight)
    assert saved and not any(tensor.shape in ((E, 2 * WIDTH, H), (E, H, WIDTH)) for tensor in saved)


def test_pairs_are_sorted_by_expert_and_then_by_token():
    pairs = sort_pairs(torch.tensor([[2, 0], [1, 2], [2, 1]]), experts=4)
    assert pairs.order_R.tolist() == [1, 2, 5, 0, 3, 4]
    assert pairs.order_R[pairs.place_R].tolist() == list(range(6))
    assert pairs.end_E.tolist() == [1, 3, 6, 6]


def test_under_autocast_products_are_in_its_dtype_and_the_output_in_that_of_the_input():
    module, (x, index, weight) = experts(8), inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = GroupedExperts(module)(x, index, weight)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, module(x, index, weight), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("format", ["fp8", "int4", "uint4", "nvfp4"])
def test_the_parts_of_a_quantized_stack_are_those_of_its_rows_and_columns(format):
    packed = FORMATS[format].quantize("experts", torch.randn(3, 192, 320))
    whole = packed.dense()
    row_parts, column_parts = packed.row_parts(most=1), packed.column_parts(most=1)
    for parts, dimension, sizes in ((row_parts, 1, [128, 64]), (column_parts, 2, [128, 128, 64])):
        unpacked = [part.dense() for _, part in parts]
        assert [part.shape[dimension] for part in unpacked] == sizes
        torch.testing.assert_close(torch.cat(unpacked, dimension), whole, rtol=0, atol=0)
        assert [at.stop - at.start for at, _ in parts] == sizes and parts[-1][0].stop == whole.shape[dimension]


@pytest.mark.parametrize("format", ["fp8", "int4", "nvfp4"])
def test_products_in_parts_equal_whole_products(format, monkeypatch):
    module = GroupedExperts(experts(8, format, hidden=256, width=128))
    whole = results(module, *inputs(hidden=256))
    monkeypatch.setattr(packed_matrices, "PART_VALUES", 1)  # the parts of a real one have 96M values
    assert len(module.gate_up_proj.row_parts()) == len(module.gate_up_proj.column_parts()) == 2
    for found, expected in zip(results(module, *inputs(hidden=256)), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("shape", [(128, 1408, 2816), (128, 2816, 704)])
def test_at_most_part_values_of_the_experts_of_the_26b_are_unpacked_at_once(shape):
    layout = FORMATS["int4"].layout(shape)
    tensors = {key: torch.empty(size, dtype=dtype, device="meta") for key, (size, dtype) in layout.items()}
    packed = FORMATS["int4"].packed(shape, tensors)
    for parts in (packed.row_parts(), packed.column_parts()):
        sizes = [math.prod(part.shape) for _, part in parts]
        assert max(sizes) <= packed_matrices.PART_VALUES and sum(sizes) == math.prod(shape)
