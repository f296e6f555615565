"""Embedding and rotation kernels against plain operations: in Triton's interpreter, or on a GPU.

T tokens, H hidden, V vocabulary.
"""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from gesso.backends.cuda.kernels import embed, soft
from gesso.checkpoint.quantize.formats import FORMATS
from gesso.model import rope
from gesso.model.modules import rms_norm
from gesso.model.transformer import DiffusionGemma

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
V, H, SCALE, EPS = 30, 48, 7.5, 1e-6


@pytest.fixture(params=["fp8", None], ids=str)
def table(request):
    table_VH = torch.randn(V, H, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    return FORMATS[request.param].quantize("table", table_VH) if request.param else table_VH


def rows(count, seed=1):
    return torch.randn(count, H, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def test_conditioned_tokens_match_plain_embedding_and_norm(table):
    token_T, signal_TH = torch.tensor([0, 29, 7, 7], device=DEVICE), rows(4)
    found = embed.conditioned(token_T, table, SCALE, signal_TH, EPS)
    torch.testing.assert_close(found, rms_norm(F.embedding(token_T, table) * SCALE + signal_TH, None, EPS))


def test_pinned_positions_get_the_embedding_of_their_token(table):
    pin_P, soft_TH = torch.tensor([-1, 0, 29, -1, -1], device=DEVICE), rows(5)
    place_T = torch.tensor([3, 0, -1, 1, 2], device=DEVICE)
    model = SimpleNamespace(embed=lambda ids, stack: F.embedding(ids, table) * SCALE, decoder=None)
    out_PH = torch.full_like(soft_TH, torch.nan)
    embed.with_pins(place_T, pin_P, soft_TH, table, SCALE, out_PH)
    expected_PH = DiffusionGemma.conditioning(model, pin_P[:4], soft_TH[[1, 3, 4, 0]])
    assert torch.equal(out_PH[:4], expected_PH)
    assert out_PH[4].isnan().all(), "padding is written nowhere"


@pytest.mark.parametrize("fraction, proportional", [(1.0, False), (0.25, True)])
def test_rotation_kernel_matches_plain_rotation(fraction, proportional):
    position_T = torch.tensor([0, 1, 1023, 131071, 262143], device=DEVICE)
    frequencies_F = rope.inverse_frequencies(24, 1e4, fraction, proportional).to(DEVICE)
    found = embed.rotation(position_T, frequencies_F, torch.float32)
    for mine, plain in zip(found, rope.rotation(position_T, frequencies_F, torch.float32), strict=True):
        assert mine.shape == plain.shape == (5, 1, 24)
        torch.testing.assert_close(mine, plain, rtol=0, atol=1e-6)


def test_largest_scale_is_that_of_the_tables_current_tensors():
    packed = FORMATS["fp8"].quantize("table", rows(V))
    first = soft._largest(packed, packed.tensors["weight_scale"])
    assert soft._largest(packed, packed.tensors["weight_scale"]) is first
    packed.register_buffer("weight_scale", packed.tensors["weight_scale"] * 2)
    assert torch.equal(soft._largest(packed, packed.tensors["weight_scale"]), first * 2)
