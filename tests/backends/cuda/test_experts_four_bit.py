"""Expert products with four-bit weights against plain products with the same weights, in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F

kernel = pytest.importorskip("gesso.backends.cuda.kernels.experts_four_bit")

from gesso.backends.cuda.experts import FOUR_BIT_TILES, kernels_fit  # noqa: E402
from gesso.backends.cuda.kernels.experts import group  # noqa: E402
from gesso.backends.cuda.kernels.four_bit import FourBitMatrices, interleaved  # noqa: E402
from gesso.checkpoint.quantize import packed as quantized  # noqa: E402
from gesso.model.experts import Experts  # noqa: E402

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def make(kind: str, experts: int, outputs: int, inputs: int, seed: int):
    """Return packed weights of random bits, and the matrices they represent."""
    g = torch.Generator().manual_seed(seed)
    nibble = torch.randint(0, 16, (experts, outputs, inputs), generator=g)
    packed = (nibble[..., 0::2] | (nibble[..., 1::2] << 4)).to(torch.uint8)
    values, size = 32 if kind == "int4" else 16, inputs**-0.5
    scale = (torch.rand(experts, outputs, inputs // values, generator=g) + 0.1) * size
    if kind == "int4":
        scale, global_scale, number = scale.bfloat16(), None, (nibble - 8).float()
    else:
        scale, global_scale = (scale * 16).to(torch.float8_e4m3fn), 4 + torch.arange(experts).float()
        number = E2M1[nibble & 7] * torch.where(nibble > 7, -1.0, 1.0)
    dequantized = number * scale.float().repeat_interleave(values, -1)
    return FourBitMatrices(
        packed, scale, global_scale
    ), dequantized if global_scale is None else dequantized / global_scale[:, None, None]


@pytest.mark.parametrize("kind", ["int4", "nvfp4"])
def test_four_bit_expert_kernels_match_dequantized_products(kind):
    """Experts get 40, 25, 10 and 5 rows: more than a tile, most of one, and few."""
    tokens, hidden, experts, k, width = 40, 256, 4, 2, 64
    x_TH = torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(0))
    index_TK = torch.tensor([[2, 0]] * 10 + [[1, 2]] * 25 + [[2, 3]] * 5)
    gate_up, dequantized_up = make(kind, experts, 2 * width, hidden, 1)
    down, dequantized_down = make(kind, experts, hidden, width, 2)
    groups = group(index_TK, experts, kernel.choose_tiling("up", kind, tokens).rows)
    interleaved_TH = interleaved(x_TH, kernel.up_depth(kind))
    h_RI = kernel.up_product(interleaved_TH, groups, k, gate_up)
    y_RH = kernel.down_product(h_RI, groups, k, down)
    torch.testing.assert_close(kernel.outputs(interleaved_TH, index_TK, gate_up, down), y_RH)
    column_I = interleaved(torch.arange(width)[None], kernel.choose_tiling("down", kind, tokens).depth)[0]
    h_RI = h_RI[:, column_I.argsort()]
    pairs = [(t, e) for t, row in enumerate(index_TK.tolist()) for e in row]
    for pair, (token, expert) in enumerate(pairs):
        gate, up = (dequantized_up[expert] @ x_TH[token]).chunk(2)
        h = F.gelu(gate, approximate="tanh") * up
        place = groups.order_R.tolist().index(pair)
        torch.testing.assert_close(h_RI[place], h, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(y_RH[pair], dequantized_down[expert] @ h, rtol=1e-4, atol=1e-3)


def test_four_bit_kernels_reject_rows_that_are_not_whole_steps():
    packed, _ = make("int4", 1, 8, 96, 0)
    groups = group(torch.zeros(1, 1, dtype=torch.int64), 1, 32)
    with pytest.raises(ValueError, match="96 values"):
        kernel.up_product(torch.zeros(1, 96), groups, 1, packed)


def test_four_bit_experts_with_partial_tiles_use_plain_operations():
    def fits(hidden: int, width: int, kind: str = "int4") -> bool:
        shapes = (4 * k, 2 * width, hidden), (4 * k, hidden, width)
        experts = Experts.__new__(Experts)
        torch.nn.Module.__init__(experts)
        weights = (quantized.Packed(kind, shape, {}, lambda tensors: torch.empty(0)) for shape in shapes)
        experts.gate_up_proj, experts.down_proj = weights
        return kernels_fit(experts, k)

    k = 2
    assert fits(256, 64) and not fits(192, 64) and not fits(256, 96) and fits(192, 96, "fp8")
    for product, depths in zip(("up", "down"), FOUR_BIT_TILES, strict=True):
        assert all(depths % (2 * kernel.choose_tiling(product, kind, 1).depth) == 0 for kind in ("int4", "nvfp4"))


@pytest.mark.parametrize("product, kind", kernel.TILINGS)
def test_four_bit_tilings_sum_in_one_order_for_any_number_of_tokens(product, kind):
    """The depth of tiles defines the order. Both products must also have tiles of the same number of rows."""
    assert len({tiling.depth for _, tiling in kernel.TILINGS[product, kind]}) == 1
    rows = {name: [(limit, tiling.rows) for limit, tiling in kernel.TILINGS[name, kind]] for name in ("up", "down")}
    assert rows["up"] == rows["down"]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["int4", "nvfp4"])
def test_four_bit_ptx_matches_the_plain_conversion_to_the_bit(kind):
    """The identity matrix selects single weights; 512 rows of them hold every value under every scale."""
    matrix, _ = make(kind, 1, 512, 256, 3)
    scale = torch.arange(matrix.scale_EOG.numel(), dtype=torch.int16).view_as(matrix.scale_EOG)
    if kind == "int4":
        scale, global_scale = (scale + 0x3C00).view(torch.bfloat16), None
    else:
        scale, global_scale = (scale % 127).to(torch.uint8).view(torch.float8_e4m3fn), torch.ones(1)
    nibble = torch.stack((matrix.packed_EOB & 15, matrix.packed_EOB >> 4), -1).flatten(-2)
    number = nibble - 8.0 if kind == "int4" else E2M1[nibble.int() & 7] * torch.where(nibble > 7, -1.0, 1.0)
    dequantized = (number * scale.float().repeat_interleave(256 // scale.shape[-1], -1)).bfloat16()
    given = FourBitMatrices(
        matrix.packed_EOB.cuda(), scale.cuda(), global_scale if global_scale is None else global_scale.cuda()
    )
    one = torch.eye(256, device="cuda", dtype=torch.bfloat16)
    tiling = kernel.choose_tiling("down", kind, 256)
    groups = group(torch.zeros(256, 1, device="cuda", dtype=torch.int64), 1, tiling.rows)
    found = kernel.down_product(interleaved(one, tiling.depth), groups, 1, given)
    assert torch.equal(found.cpu().T, dequantized[0])
