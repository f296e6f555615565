"""Attention kernels against plain attention: compiled if there is a GPU, otherwise in Triton's interpreter."""

import copy
from dataclasses import replace

import pytest
import torch

from gesso.cards.running import card_of
from gesso.model.attention import attend_with_cache
from gesso.model.cache import LayerKV
from gesso.model.config import LayerShape, Rope

pytest.importorskip("triton")
from gesso.backends.cuda.kernels import attention as kernel  # noqa: E402
from gesso.backends.cuda.kernels import segments as segments_module  # noqa: E402
from gesso.backends.cuda.kernels.attention_tiles import Tiles, tiles  # noqa: E402
from gesso.backends.cuda.kernels.linear import MANY, quantize_rows  # noqa: E402
from gesso.backends.cuda.kernels.segments import Segment  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = Tiles(rows=32, keys=16, values=16, warps=4, stages=1, splits=3)
TEXT, CANVAS = True, False
COMPILED = DEVICE.type == "cuda"
HALF = torch.bfloat16 if COMPILED else torch.float16  # the interpreter multiplies bfloat16 as integers
M, D = 2, 16
ROLES = [
    [Segment(0, 1000, 256, CANVAS)],
    [Segment(0, 77, 100, CANVAS), Segment(1, 0, 9, CANVAS)],  # splits without keys, rows beyond the last query
    [Segment(0, 0, 300, TEXT), Segment(1, 500, 77, TEXT), Segment(2, 64, 1, TEXT)],
    # cached and fresh keys in one block
    [Segment(0, 77, 100, TEXT), Segment(0, 177, 64, CANVAS), Segment(1, 3, 20, TEXT), Segment(2, 700, 256, CANVAS)],
]


def table_of(segments, cache):
    return segments_module.tables([cache], segments, max(segment.size for segment in segments))[0]


def numbers(*shape, dtype):
    """Return random numbers at a scale that gives scores of about one, so that many keys have weight."""
    return (torch.randn(shape, device=DEVICE) * shape[-1] ** -0.25).to(dtype)


def cache_of(lengths, window=None, spare=64, dtype=torch.float32, dim=D):
    """Return a layer's cache whose rows hold `lengths` random tokens.

    Rings hold three tokens more than the window, so that they wrap soon.
    """
    rope = Rope(theta=1e4, fraction=1.0, proportional=False)
    shape = LayerShape(sliding=window is not None, head_dim=dim, kv_heads=M, rope=rope)
    cache = LayerKV(shape, window or 0, DEVICE, dtype, spare=3)
    for row, length in enumerate(lengths):
        cache.add_row()
        cache.grow(row, length + spare)
        cache.write(row, 0, *numbers(2, length, M, dim, dtype=dtype))
    return cache


def packed(segments, groups=2, dtype=torch.float32, dim=D):
    tokens = sum(segment.length for segment in segments)
    # Slices of one projection, as in the model: not contiguous from token to token.
    qkv = numbers(tokens, groups * M + 2 * M, dim, dtype=dtype)
    return qkv.split([groups * M, M, M], dim=1)


def plain(q_TND, k_TMD, v_TMD, cache, segments):
    """Return the plain attention of each segment, in order."""
    lengths = [segment.length for segment in segments]
    parts = zip(*(tensor.split(lengths) for tensor in (q_TND, k_TMD, v_TMD)), segments, strict=True)
    return torch.cat([attend_with_cache(q, k, v, cache, s.row, s.start, s.causal, s.block) for q, k, v, s in parts])


def both(segments, cache, groups=2, shape=SMALL, **kinds):
    """Return the outputs of kernel and plain version, each with a cache of its own, and these caches."""
    qkv, other = packed(segments, groups, **kinds), copy.deepcopy(cache)
    expected = plain(*qkv, cache, segments)
    return kernel.attention(*qkv, table_of(segments, other), shape), expected, other, cache


def assert_same(segments, cache, groups=2, shape=SMALL, tolerance=2e-6, **kinds):
    ours, plain, our_cache, plain_cache = both(segments, cache, groups, shape, **kinds)
    torch.testing.assert_close(ours, plain, atol=tolerance, rtol=tolerance)
    for row in range(len(cache.k)):
        assert torch.equal(our_cache.k[row], plain_cache.k[row])
        assert torch.equal(our_cache.v[row], plain_cache.v[row])


@pytest.mark.parametrize("causal, window, groups", [(TEXT, 24, 1), (CANVAS, None, 8)])
def test_attention_kernel_matches_plain_attention(causal, window, groups):
    assert_same([Segment(0, 21, 19, causal)], cache_of([21], window), groups)


@pytest.mark.parametrize(
    "cached, length, window, causal",
    [(0, 35, None, TEXT), (16, 1, None, TEXT), (17, 33, 24, CANVAS)],
)
def test_attention_kernel_matches_plain_attention_at_ragged_lengths(cached, length, window, causal):
    assert_same([Segment(0, cached, length, causal)], cache_of([cached], window))


@pytest.mark.parametrize("cached, causal", [(23, TEXT), (60, CANVAS)])
def test_attention_kernel_reads_and_writes_wrapped_ring_buffers(cached, causal):
    assert_same([Segment(0, cached, 18, causal)], cache_of([cached], window=24))


@pytest.mark.parametrize("cached", [0, 30])
def test_text_longer_than_the_window_leaves_its_end_in_the_cache(cached):
    assert_same([Segment(0, cached, 45, TEXT)], cache_of([cached], window=8))


def test_canvas_over_an_empty_cache_row_attends_to_itself():
    assert_same([Segment(0, 0, 20, CANVAS)], cache_of([0], spare=0))


def test_padding_after_a_text_changes_nothing_else_and_gets_zeros(window=20):
    segments = [Segment(0, 5, 9, TEXT), Segment(1, 41, 30, TEXT), Segment(1, 71, 12, CANVAS)]
    padded = [replace(segments[0], room=16), replace(segments[1], room=32), segments[2]]
    kept = torch.cat([torch.arange(at, at + s.length) for at, s in zip((0, 16, 48), segments, strict=True)]).to(DEVICE)
    caches = [cache_of([5, 41], window)]
    caches.append(copy.deepcopy(caches[0]))
    qkv = packed([Segment(0, 0, 60, TEXT)])
    alone = kernel.attention(*(each[kept] for each in qkv), table_of(segments, caches[0]), SMALL)
    found = kernel.attention(*qkv, table_of(padded, caches[1]), SMALL)
    assert torch.equal(found[kept], alone)
    assert not found[9:16].any() and not found[46:48].any()
    for plain, other in zip(*((*each.k, *each.v) for each in caches), strict=True):
        assert torch.equal(plain, other)


def test_attention_kernel_keeps_cache_rows_apart(window=20):
    segments = [
        Segment(2, 33, 17, CANVAS), Segment(0, 5, 9, TEXT), Segment(3, 0, 4, CANVAS), Segment(1, 41, 30, TEXT)
    ]  # fmt: skip
    assert_same(segments, cache_of([5, 41, 33, 0], window))


@pytest.mark.parametrize("cached, window", [(37, 20), (13, None)])
def test_segments_attend_to_earlier_text_of_the_same_pass(cached, window):
    segments = [
        Segment(1, 3, 5, CANVAS),
        Segment(0, cached, 20, TEXT), Segment(0, cached + 20, 16, TEXT), Segment(0, cached + 36, 7, TEXT),
        Segment(0, cached + 43, 12, CANVAS),
    ]  # fmt: skip
    assert_same(segments, cache_of([cached, 3], window))


def image(row, start, length):
    return Segment(row, start, length, TEXT, block=True)


# The second has cached and own keys beyond the window; the third exceeds it; the fourth is so short that it is split.
@pytest.mark.parametrize("cached, length, window", [(21, 19, None), (60, 30, 24), (30, 45, 8), (61, 14, 24)])
def test_a_block_sees_all_of_itself_beside_what_text_sees(cached, length, window):
    assert_same([image(0, cached, length)], cache_of([cached], window))


@pytest.mark.parametrize("cached, window", [(37, 20), (13, None)])
def test_a_block_between_texts_of_the_same_pass(cached, window):
    segments = [
        Segment(1, 3, 5, CANVAS),
        Segment(0, cached, 20, TEXT), image(0, cached + 20, 25), Segment(0, cached + 45, 7, TEXT),
        Segment(0, cached + 52, 12, CANVAS), image(2, 9, 18),
    ]  # fmt: skip
    assert_same(segments, cache_of([cached, 3, 9], window))


def test_a_block_changes_no_bits_of_others_and_they_none_of_its_own(window=20):
    segments = [Segment(1, 5, 20, TEXT), Segment(0, 21, 17, CANVAS), image(2, 33, 30), Segment(3, 7, 3, TEXT)]
    cache, qkv = cache_of([21, 5, 33, 7], window), packed(segments)
    other = copy.deepcopy(cache)
    together, offset = kernel.attention(*qkv, table_of(segments, other), SMALL), 0
    for segment in segments:
        part = [tensor[offset : offset + segment.length] for tensor in qkv]
        table = table_of([segment], cache)
        assert table.blocks == segment.block, "passes without a block do no extra work"
        assert torch.equal(kernel.attention(*part, table, SMALL), together[offset : offset + segment.length])
        offset += segment.length


def test_a_block_never_runs_on_the_kernel_for_hopper():
    """It is written in Gluon and has no mask for blocks. Without a GPU it would fail."""
    cache, segments = cache_of([9]), [image(0, 9, 20)]
    assert_same(segments, cache, shape=replace(SMALL, roles=True))


def test_texts_that_others_read_must_be_adjacent():
    segments = [Segment(0, 4, 3, TEXT), Segment(1, 0, 2, TEXT), Segment(0, 7, 3, TEXT), Segment(0, 10, 5, CANVAS)]
    with pytest.raises(ValueError, match="text of row 0 at position 10 .* next to each other"):
        table_of(segments, cache_of([4, 0]))


@pytest.mark.parametrize("cached, window", [(37, 20), (13, None)])
def test_a_text_to_verify_follows_a_canvas_that_does_not_see_it(cached, window):
    start = cached + 9
    segments = [Segment(0, cached, 9, TEXT), Segment(0, start, 16, CANVAS), Segment(0, start, 16, TEXT)]
    assert_same([*segments, Segment(1, 3, 5, CANVAS)], cache_of([cached, 3], window))


def test_attention_is_batch_invariant(window=20):
    lengths = [21, 5, 33]
    segments = [Segment(1, 5, 20, TEXT), Segment(0, 21, 17, CANVAS), Segment(2, 33, 3, TEXT), Segment(2, 36, 9, CANVAS)]
    cache, qkv = cache_of(lengths, window), packed(segments)
    other = copy.deepcopy(cache)
    together = kernel.attention(*qkv, table_of(segments, other), SMALL)
    offset = 0
    for segment in segments:  # the last segment reads the text that the third has appended
        part = [tensor[offset : offset + segment.length] for tensor in qkv]
        alone = kernel.attention(*part, table_of([segment], cache), SMALL)
        assert torch.equal(alone, together[offset : offset + segment.length])
        offset += segment.length


@pytest.mark.parametrize("window", [None, 24])
def test_split_keys_match_plain_attention(window):
    """Some of 6 splits are empty where a window leaves few blocks. Two rings have wrapped, at different slots."""
    segments = [
        Segment(0, 61, 14, CANVAS), Segment(1, 0, 17, CANVAS), Segment(2, 30, 18, TEXT), Segment(2, 48, 3, CANVAS)
    ]  # fmt: skip
    assert_same(segments, cache_of([61, 0, 30], window), shape=replace(SMALL, splits=6))


@pytest.mark.parametrize("splits", [1, 3])
def test_low_rows_are_the_quantized_outputs(splits):
    """Rows of canvases are combined, those of the long text are not, and its padding has zeros."""
    segments = [Segment(0, 30, 7, CANVAS), Segment(1, 30, 18, TEXT, room=20), Segment(2, 9, 3, TEXT)]
    cache, shape = cache_of([30, 30, 9]), replace(SMALL, splits=splits)
    other, qkv = copy.deepcopy(cache), packed([Segment(0, 0, 30, TEXT)])
    out_TND = kernel.attention(*qkv, table_of(segments, other), shape)
    found = kernel.attention(*qkv, table_of(segments, cache), shape, low=True)
    if splits == 1:
        assert torch.equal(found, out_TND)
        return
    low_TI, scale_T = quantize_rows(out_TND.flatten(1))
    scale_T[25:27] = 0  # padding
    assert torch.equal(found.low_TI.float(), low_TI.float()) and torch.equal(found.scale_T, scale_T)


def test_unwritten_output_of_an_empty_split_is_not_read(monkeypatch):
    segments, cache = [Segment(0, 9, 5, CANVAS)], cache_of([9])
    qkv, table = packed(segments), table_of(segments, cache)
    new_empty = torch.Tensor.new_empty

    def unset(like, *shape, **kinds):
        return new_empty(like, *shape, **kinds).fill_(torch.nan if like.is_floating_point() else 0)

    monkeypatch.setattr(torch.Tensor, "new_empty", unset)  # memory that torch reuses is rarely NaN
    ours = kernel.attention(*qkv, table, replace(SMALL, splits=4))
    torch.testing.assert_close(ours, plain(*qkv, cache, segments), atol=2e-6, rtol=2e-6)


def test_only_canvases_and_short_texts_are_split():
    segments = [Segment(0, 40, 20, TEXT), Segment(1, 30, 4, CANVAS), Segment(2, 40, 1, TEXT)]
    cache, qkv = cache_of([40, 30, 40]), packed(segments)
    other = copy.deepcopy(cache)
    whole = kernel.attention(*qkv, table_of(segments, cache), replace(SMALL, splits=1))
    parts = kernel.attention(*qkv, table_of(segments, other), replace(SMALL, splits=3))
    assert torch.equal(whole[:20], parts[:20])
    for cut in (slice(20, 24), slice(24, 25)):
        assert not torch.equal(whole[cut], parts[cut])  # one sum and three differ in the last bits


@pytest.mark.gpu
def test_captured_attention_follows_changes_of_its_table():
    first, later = ([Segment(a, 18, 20, CANVAS), Segment(b, 18, 5, TEXT)] for a, b in ((0, 1), (1, 0)))
    cache, qkv = cache_of([18, 18], window=16), packed(first)
    table = table_of(first, cache)
    kernel.attention(*qkv, table, SMALL)  # compile before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernel.attention(*qkv, table, SMALL)
    other = copy.deepcopy(cache)
    now = table_of(later, cache)
    table.segments_S7.copy_(now.segments_S7)
    table.rows_S3.copy_(now.rows_S3)
    graph.replay()
    assert torch.equal(captured, kernel.attention(*qkv, table_of(later, other), SMALL))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(cache.k + cache.v, other.k + other.v, strict=True))


def test_values_may_be_sliced_over_programs():
    cache, segments = cache_of([40], dim=64), [Segment(0, 40, 20, CANVAS)]
    qkv = packed(segments, dim=64)
    whole, halves = (
        kernel.attention(*qkv, table_of(segments, cache), Tiles(16, 32, values, warps=4, stages=2))
        for values in (64, 32)
    )
    torch.testing.assert_close(whole, halves, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(whole, plain(*qkv, cache, segments), atol=2e-6, rtol=2e-6)


def test_half_precision_attention_matches_within_rounding(window=24):
    segments = [Segment(0, 30, 20, CANVAS), Segment(1, 9, 25, TEXT)]
    assert_same(segments, cache_of([30, 9], window, dtype=HALF), tolerance=2e-2, dtype=HALF)


# Compiled code differs for each of these. The interpreter runs the same code for 64 and 256 and for both canvases, and
# float32 has one tile for all lengths.
@pytest.mark.parametrize("dtype", [torch.float32, HALF] if COMPILED else [HALF])
@pytest.mark.parametrize("dim", [64, 256, 512] if COMPILED else [64, 512])
@pytest.mark.parametrize("kind, length", [*([(CANVAS, 8)] if COMPILED else []), (CANVAS, 16), (TEXT, 1)])
def test_small_and_large_tiles_give_the_same_bits(kind, length, dim, dtype):
    """The longest segment of a pass determines the tile, so a short one may get either."""
    segments, cache = [Segment(0, 100, length, kind)], cache_of([100], dtype=dtype, dim=dim)
    qkv, caches = packed(segments, dtype=dtype, dim=dim), (cache, copy.deepcopy(cache))
    small, large = (
        kernel.attention(*qkv, table_of(segments, each), tiles(dim, dtype, card_of(DEVICE), rows))
        for each, rows in zip(caches, (2 * length, MANY), strict=True)
    )
    assert torch.equal(small, large)


@pytest.mark.gpu
@pytest.mark.parametrize("dim, window", [(256, 300), (512, None)])
@pytest.mark.parametrize("groups", [2, 8])
@pytest.mark.parametrize("segments", ROLES, ids=len)
def test_warps_with_separate_roles_give_the_same_bits(segments, groups, dim, window):
    """The kernel for Hopper sums in the order of the plain Triton kernel, in all kinds of segments."""
    chosen = tiles(dim, HALF, card_of(DEVICE))
    if not chosen.roles:
        pytest.skip("needs a Hopper GPU and the version of Triton that the kernel is written for")
    lengths = {segment.row: segment.start for segment in reversed(segments)}
    cache = cache_of([lengths[row] for row in range(len(lengths))], window, spare=600, dtype=HALF, dim=dim)
    other, qkv = copy.deepcopy(cache), packed(segments, groups, dtype=HALF, dim=dim)
    expected = plain(*qkv, copy.deepcopy(cache), segments)
    roles = kernel.attention(*qkv, table_of(segments, cache), chosen)
    alike = kernel.attention(*qkv, table_of(segments, other), replace(chosen, warps=8, roles=False))
    assert torch.equal(roles, alike)
    torch.testing.assert_close(roles, expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("dim, window", [(256, 24), (512, None)])
def test_default_tiles_match_plain_attention(dim, window, dtype):
    segments, cache = [Segment(0, 39, 20, CANVAS)], cache_of([39], window, dtype=dtype, dim=dim)
    tolerance = 2e-2 if dtype == HALF else 1e-5
    assert_same(segments, cache, shape=None, tolerance=tolerance, dtype=dtype, dim=dim)


def test_attention_kernel_rejects_unsupported_layouts():
    segments, cache = [Segment(0, 0, 4, CANVAS)], cache_of([0])
    table = table_of(segments, cache)
    q, k, v = packed(segments)
    with pytest.raises(ValueError, match="power of two"):
        kernel.attention(q[..., :12], k[..., :12], v[..., :12], table)
    with pytest.raises(ValueError, match="one dtype"):
        kernel.attention(q.bfloat16(), k, v, table)
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        kernel.attention(q, torch.randn(4, M, D + 1, device=DEVICE)[..., 1:], v, table)
