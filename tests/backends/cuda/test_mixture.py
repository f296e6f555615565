"""Experts whose two matrices have different formats against the plain experts: on a GPU in bfloat16, as real experts,
and otherwise in float32 in Triton's interpreter.
"""

import pytest
import torch

mixture = pytest.importorskip("gesso.backends.cuda.kernels.mixture")

from gesso.backends.cuda.activations import ExpertOutputs, Interleaved  # noqa: E402
from gesso.backends.cuda.experts import experts, input_format, is_memory_bound, kernels_fit  # noqa: E402
from gesso.backends.cuda.kernels import experts as grouped  # noqa: E402
from gesso.backends.cuda.kernels.experts_four_bit import TILINGS, depth  # noqa: E402
from gesso.backends.cuda.kernels.four_bit import FOUR_BIT, interleaved  # noqa: E402
from gesso.backends.cuda.kernels.hidden import new_fp8  # noqa: E402
from gesso.backends.cuda.kernels.linear import BLOCK, FP8  # noqa: E402
from gesso.checkpoint.quantize.formats import FORMATS  # noqa: E402
from gesso.model.experts import Experts  # noqa: E402

DEVICE, DTYPE = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
EXPERTS, K, HIDDEN = 5, 2, 128
# Every format of the first product, and with each of them another form of the rows between the products.
MIXTURES = [(None, "fp8"), (None, "int4"), ("fp8", None), ("fp8", "uint4"), ("int4", None), ("uint4", "fp8"),
            ("uint4", "nvfp4"), ("nvfp4", "fp8")]  # fmt: skip


def make(gate_up: str | None, down: str | None, width: int = 128) -> Experts:
    """Return experts with weights in these formats. The blocks of columns between the products differ in size."""
    g = torch.Generator().manual_seed(0)
    first = torch.randn(EXPERTS, 2 * width, HIDDEN, generator=g) * HIDDEN**-0.5
    first[:, width + 64 :] *= 20
    second = torch.randn(EXPERTS, HIDDEN, width, generator=g) * width**-0.5
    second[..., 64:] /= 20
    module = Experts.__new__(Experts)
    torch.nn.Module.__init__(module)
    for name, weight, format in (("gate_up_proj", first, gate_up), ("down_proj", second, down)):
        weight = weight.to(DEVICE, DTYPE)
        setattr(module, name, FORMATS[format].quantize(name, weight) if format else weight)
    return module.to(DEVICE, DTYPE)


def draw(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    index_TK = torch.rand(tokens, EXPERTS, generator=g).topk(K).indices
    x_TH, weight_TK = torch.randn(tokens, HIDDEN, generator=g), torch.rand(tokens, K, generator=g)
    return x_TH.to(DEVICE, DTYPE), index_TK.to(DEVICE), weight_TK.to(DEVICE)


def fast(module: Experts, x_TH: torch.Tensor, index_TK: torch.Tensor, weight_TK: torch.Tensor) -> torch.Tensor:
    assert kernels_fit(module, K)
    format = input_format(module, K)
    rows = Interleaved(interleaved(x_TH, depth("up", format))) if format in FOUR_BIT else x_TH
    found = experts(module, rows, index_TK, weight_TK, [len(x_TH)])
    assert isinstance(found, ExpertOutputs)
    return (found.outputs_RH.unflatten(0, weight_TK.shape) * weight_TK[..., None]).sum(1)


@pytest.mark.parametrize("gate_up, down, width", [*((*pair, 128) for pair in MIXTURES), ("uint4", "fp8", 80)])
def test_mixed_experts_match_plain_experts(gate_up, down, width):
    module, given = make(gate_up, down, width), draw(5)
    expected, found, low = module(*given).float(), fast(module, *given), "fp8" in (gate_up, down)
    error = ((found - expected).norm(dim=-1) / expected.norm(dim=-1)).mean()
    # FP8 matrices take FP8 rows, with an error of some 5 %, and the interpreter gets the carry of roundings wrong.
    # bfloat16 has an error of about a half percent.
    exact = 1e-4 if DEVICE == "cpu" else 0.015
    assert error < (0.1 if low else exact)
    assert (error > exact) == low, "FP8 rows must be used for FP8 matrices only"


def test_nvfp4_experts_take_one_global_scale_per_half():
    module, given = make("nvfp4", "nvfp4"), draw(5)
    expected, gate_up = fast(module, *given), module.gate_up_proj
    half, tensors = gate_up.shape[1] // 2, {key: tensor.clone() for key, tensor in gate_up.tensors.items()}
    # Both scales of the up half divided by four give the same values.
    tensors["weight_scale"][:, half:] = (tensors["weight_scale"][:, half:].float() / 4).to(FP8)
    tensors["weight_global_scale"] = tensors["weight_global_scale"] * torch.tensor([1.0, 0.25], device=DEVICE)
    module.gate_up_proj = FORMATS["nvfp4"].packed(gate_up.shape, tensors).to(DTYPE)
    assert torch.equal(module.gate_up_proj.dense(), gate_up.dense())
    torch.testing.assert_close(fast(module, *given), expected)


def test_mixed_experts_are_batch_invariant():
    module, (x_TH, index_TK, weight_TK) = make("uint4", "fp8"), draw(20)
    whole = fast(module, x_TH, index_TK, weight_TK)
    for part in (slice(0, 1), slice(7, 15)):
        assert torch.equal(fast(module, x_TH[part], index_TK[part], weight_TK[part]), whole[part])


def test_first_matrices_decide_input_format_and_bound():
    for gate_up, down in MIXTURES:
        module = make(gate_up, down)
        assert input_format(module, K) == gate_up
        assert is_memory_bound(module) == (gate_up not in FOUR_BIT)


def test_columns_of_the_first_product_are_the_fp8_blocks_of_the_second():
    first = [tiling for tilings in grouped.UP.values() for _, tiling in tilings]
    first += [tiling for (product, _), tilings in TILINGS.items() if product == "up" for _, tiling in tilings]
    assert {tiling.columns for tiling in first} == {tiling.depth for _, tiling in grouped.DOWN[FP8]} == {BLOCK}


def test_fp8_rows_with_other_blocks_are_rejected():
    groups = grouped.group(torch.zeros(1, 1, dtype=torch.int64, device=DEVICE), 1, 64)
    h, weight = new_fp8(1, 64, 32, torch.device(DEVICE)), torch.zeros(1, 128, 64, device=DEVICE)
    with pytest.raises(ValueError, match="first product works on 64 columns.*one scale per 32"):
        grouped.up_product(weight[0, :1], None, groups, 1, grouped.Matrices(weight), h)
    low = grouped.Matrices(weight.to(FP8), torch.ones(1, 128, device=DEVICE))
    with pytest.raises(ValueError, match="second product works on 64 columns.*one scale per 32"):
        grouped.down_product(h, groups, 1, low, torch.float32)
