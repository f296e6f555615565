"""Expert products with four-bit weights against plain products with the same weights, in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F

kernel = pytest.importorskip("gesso.backends.cuda.kernels.experts_four_bit")

from gesso.backends.cuda.experts import FOUR_BIT_TILES, kernels_fit  # noqa: E402
from gesso.backends.cuda.kernels.experts import group  # noqa: E402
from gesso.backends.cuda.kernels.four_bit import FOUR_BIT, FourBitMatrices, interleaved  # noqa: E402
from gesso.backends.cuda.kernels.hidden import Hidden, new_plain  # noqa: E402
from gesso.backends.cuda.kernels.mixture import new_hidden  # noqa: E402
from gesso.checkpoint.quantize import packed as quantized  # noqa: E402
from gesso.model.experts import Experts  # noqa: E402

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def make(kind: str, experts: int, outputs: int, inputs: int, seed: int, global_scales: int = 1):
    """Return packed weights of random bits, and the matrices they represent."""
    g = torch.Generator().manual_seed(seed)
    nibble = torch.randint(0, 16, (experts, outputs, inputs), generator=g)
    packed = (nibble[..., 0::2] | (nibble[..., 1::2] << 4)).to(torch.uint8)
    values, size = 16 if kind == "nvfp4" else 32, inputs**-0.5
    scale = (torch.rand(experts, outputs, inputs // values, generator=g) + 0.1) * size
    if kind == "nvfp4":
        scale = (scale * 16).to(torch.float8_e4m3fn)
        global_scale = 4 + torch.arange(experts * global_scales).float().view(experts, global_scales)
        number = E2M1[nibble & 7] * torch.where(nibble > 7, -1.0, 1.0)
        dequantized = number * scale.float().repeat_interleave(values, -1)
        dequantized /= global_scale.repeat_interleave(outputs // global_scales, 1)[..., None]
        return FourBitMatrices(kind, packed, scale, global_scale), dequantized
    scale = scale.bfloat16()
    offset = -8 * scale if kind == "int4" else (torch.randn(scale.shape, generator=g) * size * 4).bfloat16()
    scale_N, offset_N = (t.float().repeat_interleave(values, -1) for t in (scale, offset))
    stored = scale if kind == "int4" else torch.stack((scale, offset), -1)
    return FourBitMatrices(kind, packed, stored), nibble * scale_N + offset_N


@pytest.mark.parametrize("kind, global_scales", [("int4", 1), ("uint4", 1), ("nvfp4", 1), ("nvfp4", 2)])
def test_four_bit_expert_kernels_match_dequantized_products(kind, global_scales):
    """Experts get 40, 25, 10 and 5 rows: more than a tile, most of one, and few."""
    tokens, hidden, experts, k, width = 40, 256, 4, 2, 64
    x_TH = torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(0))
    index_TK = torch.tensor([[2, 0]] * 10 + [[1, 2]] * 25 + [[2, 3]] * 5)
    gate_up, dequantized_up = make(kind, experts, 2 * width, hidden, 1, global_scales)
    down, dequantized_down = make(kind, experts, hidden, width, 2)
    groups = group(index_TK, experts, kernel.choose_tiling("up", kind, tokens).rows)
    h = new_hidden(down, tokens * k, x_TH.dtype)
    kernel.up_product(interleaved(x_TH, kernel.depth("up", kind)), groups, k, gate_up, h)
    y_RH = kernel.down_product(h, groups, k, down)
    column_I = interleaved(torch.arange(width)[None], h.interleave)[0]
    h_RI = h.rows_RI[:, column_I.argsort()]
    pairs = [(t, e) for t, row in enumerate(index_TK.tolist()) for e in row]
    for pair, (token, expert) in enumerate(pairs):
        gate, up = (dequantized_up[expert] @ x_TH[token]).chunk(2)
        h_I = F.gelu(gate, approximate="tanh") * up
        place = groups.order_R.tolist().index(pair)
        torch.testing.assert_close(h_RI[place], h_I, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(y_RH[pair], dequantized_down[expert] @ h_I, rtol=1e-4, atol=1e-3)


def test_four_bit_kernels_reject_rows_that_are_not_whole_steps():
    packed, _ = make("int4", 1, 8, 96, 0)
    groups = group(torch.zeros(1, 1, dtype=torch.int64), 1, 32)
    with pytest.raises(ValueError, match="96 values"):
        kernel.up_product(torch.zeros(1, 96), groups, 1, packed, new_plain(1, 4, torch.float32, torch.device("cpu")))


def test_four_bit_second_product_rejects_rows_in_another_form_and_two_global_scales():
    groups = group(torch.zeros(1, 1, dtype=torch.int64), 1, 32)
    plain = new_plain(1, 64, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="interleaved for tiles of 32 bytes, got 0"):
        kernel.down_product(plain, groups, 1, make("uint4", 1, 8, 64, 0)[0])
    two_scales, _ = make("nvfp4", 1, 8, 64, 0, global_scales=2)
    with pytest.raises(ValueError, match="one global scale per expert in the second product, got 2"):
        kernel.down_product(new_hidden(two_scales, 1, torch.float32), groups, 1, two_scales)


def test_four_bit_experts_with_partial_tiles_use_plain_operations():
    def fits(hidden: int, width: int, kind: str = "int4", down: str | None = None) -> bool:
        shapes = (4 * k, 2 * width, hidden), (4 * k, hidden, width)
        experts = Experts.__new__(Experts)
        torch.nn.Module.__init__(experts)
        kinds = zip((kind, down or kind), shapes, strict=True)
        weights = (quantized.Packed(each, shape, {}, lambda tensors: torch.empty(0)) for each, shape in kinds)
        experts.gate_up_proj, experts.down_proj = weights
        return kernels_fit(experts, k)

    k = 2
    assert fits(256, 64) and not fits(192, 64) and not fits(256, 96) and fits(192, 96, "fp8")
    assert fits(256, 96, "uint4", "fp8") and not fits(192, 64, "uint4", "fp8") and not fits(256, 88, "uint4", "fp8")
    assert fits(192, 64, "fp8", "uint4") and not fits(192, 96, "fp8", "uint4")
    for product, depths in zip(("up", "down"), FOUR_BIT_TILES, strict=True):
        assert all(depths % (2 * kernel.choose_tiling(product, kind, 1).depth) == 0 for kind in FOUR_BIT)


@pytest.mark.parametrize("product, kind", kernel.TILINGS)
def test_four_bit_tilings_sum_in_one_order_for_any_number_of_tokens(product, kind):
    """The depth of tiles defines the order. Both products must also have tiles of the same number of rows."""
    assert len({tiling.depth for _, tiling in kernel.TILINGS[product, kind]}) == 1
    rows = {name: [(limit, tiling.rows) for limit, tiling in kernel.TILINGS[name, kind]] for name in ("up", "down")}
    assert rows["up"] == rows["down"]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", FOUR_BIT)
def test_four_bit_ptx_matches_the_plain_conversion_to_the_bit(kind):
    """The identity matrix selects single weights; 512 rows of them hold every value under many scales."""
    packed = make(kind, 1, 512, 256, 3)[0].packed_EOB
    nibble = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    if kind == "nvfp4":
        scale = (torch.arange(512 * 16) % 127).to(torch.uint8).view(1, 512, 16).view(torch.float8_e4m3fn)
        number = E2M1[nibble.int() & 7] * torch.where(nibble > 7, -1.0, 1.0)
        dequantized = number * scale.float().repeat_interleave(16, -1)
        given = FourBitMatrices(kind, packed.cuda(), scale.cuda(), torch.ones(1, 1, device="cuda"))
    else:
        scale = (torch.arange(512 * 8, dtype=torch.int16) + 0x3C00).view(1, 512, 8).view(torch.bfloat16)
        draw = torch.randn(scale.shape, generator=torch.Generator().manual_seed(4))
        offset = -8 * scale if kind == "int4" else (draw * scale.float() * 16).bfloat16()
        scale_N, offset_N = (t.double().repeat_interleave(32, -1) for t in (scale, offset))
        dequantized = nibble * scale_N + offset_N  # exact, so that bfloat16 is rounded once
        stored = scale if kind == "int4" else torch.stack((scale, offset), -1)
        given = FourBitMatrices(kind, packed.cuda(), stored.cuda())
    one = torch.eye(256, device="cuda", dtype=torch.bfloat16)
    tiling = kernel.choose_tiling("down", kind, 256)
    groups = group(torch.zeros(256, 1, device="cuda", dtype=torch.int64), 1, tiling.rows)
    h = Hidden(interleaved(one, tiling.depth), interleave=tiling.depth)
    found = kernel.down_product(h, groups, 1, given)
    assert torch.equal(found.cpu().T, dequantized.bfloat16()[0])


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [40, 1000])
def test_int4_kernels_for_hopper_match_those_in_triton_to_the_bit(tokens, monkeypatch):
    """Experts get all, some and few of the tokens. Rows of 192 values end in the middle of a step."""
    hidden, experts, k, width = 512, 4, 2, 192
    index_TK = torch.tensor([[2, 0]] * 10 + [[1, 2]] * (tokens - 15) + [[2, 3]] * 5).cuda()
    x_TH = torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(0)).bfloat16().cuda()
    gate_up, down = (
        FourBitMatrices("int4", each.packed_EOB.cuda(), each.scale_EOG.cuda())
        for each in (make("int4", experts, 2 * width, hidden, 1)[0], make("int4", experts, hidden, width, 2)[0])
    )
    groups = group(index_TK, experts, kernel.choose_tiling("up", "int4", tokens).rows)

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        h = new_hidden(down, tokens * k, x_TH.dtype)
        kernel.up_product(interleaved(x_TH, kernel.depth("up", "int4")), groups, k, gate_up, h)
        return h.rows_RI, kernel.down_product(h, groups, k, down)

    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    hopper = kernel._hopper(x_TH, tokens, gate_up, None)
    assert hopper is not None and hopper.fits(x_TH, gate_up)
    found = both()
    monkeypatch.setattr(kernel, "gluon_kernels", lambda name: None)  # the card has them
    for each, expected in zip(found, both(), strict=True):
        assert torch.equal(each, expected)
