"""Attention of one token against the plain attention, in global layers and in rings."""

import pytest
import torch

pytest.importorskip("numba")
from gesso.backends.cpu.attention import attend  # noqa: E402
from gesso.model.attention import attend_with_cache  # noqa: E402
from gesso.model.cache import LayerKV  # noqa: E402
from gesso.model.config import LayerShape  # noqa: E402
from tests.backends.cpu.test_backend import make  # noqa: E402


@pytest.fixture(params=["sliding", "global"])
def shape(request) -> LayerShape:
    return next(shape for shape in make().config.layers if shape.sliding == (request.param == "sliding"))


def caches(shape: LayerShape, window: int) -> list[LayerKV]:
    made = [LayerKV(shape, window, torch.device("cpu"), torch.float32, spare=3) for _ in range(2)]
    for cache in made:
        cache.add_row()
        cache.grow(0, 64)
    return made


@torch.no_grad()
@pytest.mark.parametrize("group", [1, 4])
def test_attention_of_one_token_matches_the_plain_attention_at_every_position(shape, group):
    torch.manual_seed(0)
    plain, fast = caches(shape, window=20)  # rings have 22 places, of which a token sees 19: they wrap twice
    heads, size = shape.kv_heads, shape.head_dim
    for position in range(50):
        q = torch.randn(1, heads * group, size)
        k, v = torch.randn(2, 1, heads, size)
        expected = attend_with_cache(q, k, v, plain, 0, position, causal=True)
        torch.testing.assert_close(attend(q, k, v, fast, 0, position, causal=True), expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(plain.k[0], fast.k[0]) and torch.equal(plain.v[0], fast.v[0])


@torch.no_grad()
def test_large_scores_do_not_overflow_and_nan_is_not_hidden(shape):
    cache, other = caches(shape, window=20)
    q = torch.full((1, shape.kv_heads, shape.head_dim), 30.0)
    for position in range(3):
        k, v = (1.0 - position) * q, torch.full_like(q, position)
        found = attend(q, k, v, cache, 0, position, causal=True)
    assert found.abs().max() < 1e-6, "all weight is on the first token, whose value is 0"
    assert attend(q * torch.nan, q, q, other, 0, 0, causal=True).isnan().all()
