"""The kernels of `predict` against `TorchBackend.predict`: in Triton's interpreter, or on a GPU.

T tokens, V vocabulary, H hidden. Blocks are small, so that small matrices have several and a ragged last one.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl

from gesso.backends.cuda.kernels import soft
from gesso.backends.cuda.kernels import vocab as vocab_kernel
from gesso.backends.cuda.kernels.capped import Product
from gesso.backends.cuda.kernels.hash import negative_gumbel
from gesso.backends.cuda.kernels.top import most_likely
from gesso.backends.torch import TorchBackend
from gesso.cards.running import card_of, playing
from gesso.checkpoint.quantize.formats import FORMATS
from gesso.diffusion import hash
from gesso.errors import InputError
from gesso.model.transformer import DiffusionGemma

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SOFTCAP, SCALE = 30.0, 7.5
NAMES = ("candidate_C", "argmax_C", "confidence_C", "entropy_C", "soft_CH")
LIKELY_NAMES = ("likely_CK", "likely_logit_CK")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """With the tiles of a GPU, a matrix of several tiles takes the interpreter minutes."""
    tile = Product(rows=16, columns=64, warps=4, stages=2, inner_bytes=64)
    for module, name, value in (
        (vocab_kernel, "LOGITS", tile),
        (vocab_kernel, "LOGITS_LOW", tile),
        (soft, "MEAN", tile._replace(columns=32)),
        (soft, "MEAN_LOW", tile._replace(rows=32)),
        (soft, "SPLITS", 3),
        (soft, "STREAM", 128),
    ):
        monkeypatch.setattr(module, name, value)  # see above
    with playing(replace(card_of(DEVICE), processors=2)):  # a program computes several tiles
        yield


@pytest.fixture(autouse=True)
def bfloat16_in_the_interpreter(monkeypatch):
    """Repair bfloat16 in Triton's interpreter, which multiplies its bits as integers and truncates."""
    if DEVICE.type == "cuda":
        return
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    dot, cast = builder.create_dot, builder.cast_impl

    def true_dot(self, a, b, *rest):
        a, b = (cast(self, x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return dot(self, a, b, *rest)

    def rounding_cast(self, source, to):
        if source.dtype.scalar != tl.float32 or to.scalar != tl.bfloat16:
            return cast(self, source, to)
        bits = torch.from_numpy(source.data.copy()).bfloat16().view(torch.uint16).numpy()
        return interpreter.TensorHandle(bits, tl.bfloat16)

    for name, repaired in (
        ("create_dot", true_dot),
        ("cast_impl", rounding_cast),
        ("create_fp_trunc", rounding_cast),
    ):
        monkeypatch.setattr(builder, name, repaired)  # Triton's, not ours


def eighths(*shape, dtype=torch.float32):
    """Return numbers whose products and sums are exact, so that the order of additions cannot change a logit."""
    return (torch.randint(-8, 9, shape) / 8).to(DEVICE, dtype)


def keys(count):
    return hash.position_keys(5, 0, 1, 0, count, DEVICE)


def fast(hidden_TH, head_VH, temperature_T=None, key_T2=None, **extra):
    count = len(hidden_TH)
    temperature_T = torch.ones(count, device=DEVICE) if temperature_T is None else temperature_T
    key_T2 = keys(count) if key_T2 is None else key_T2
    return vocab_kernel.predict(hidden_TH, head_VH, head_VH, SCALE, SOFTCAP, temperature_T, key_T2, **extra)


def plain(hidden_TH, head_VH, temperature_T=None, key_T2=None, **extra):
    count = len(hidden_TH)
    temperature_T = torch.ones(count, device=DEVICE) if temperature_T is None else temperature_T
    key_T2 = keys(count) if key_T2 is None else key_T2
    return reference(hidden_TH, head_VH, head_VH, SCALE, SOFTCAP, temperature_T, key_T2, [1] * count, **extra)


class Ends:
    """The ends of a model without layers: a head and an embedding table."""

    def __init__(self, head_VH, table_VH, scale, softcap, dtype):
        self.head, self.dtype, self.embed_scale = head_VH, dtype, scale
        self.config = SimpleNamespace(vocab_size=head_VH.shape[0], final_logit_softcapping=softcap)
        self.decoder = SimpleNamespace(embed_tokens=SimpleNamespace(weight=table_VH))

    logits, expected_embedding = DiffusionGemma.logits, DiffusionGemma.expected_embedding

    def named_modules(self, remove_duplicate):
        return ()


def reference(hidden_TH, head_VH, table_VH, scale, softcap, temperature_T, key_T2, lengths, **extra):
    backend = TorchBackend(Ends(head_VH, table_VH, scale, softcap, hidden_TH.dtype))
    return backend.predict(hidden_TH, temperature_T, key_T2, lengths, **extra)


def assert_same(mine, theirs, tolerance=1e-5, names=NAMES):
    for name in names:
        a, b = getattr(mine, name), getattr(theirs, name)
        assert (a.dtype, a.shape) == (b.dtype, b.shape), name
        # Sums run in another order: a probability or a mean may round to the neighbouring bfloat16.
        error = 2.0**-7 if b.dtype == torch.bfloat16 else tolerance
        torch.testing.assert_close(a, b, rtol=error, atol=error, msg=lambda text, n=name: f"{n}: {text}")


@triton.jit
def _noise(key_T2, noise_TV, BLOCK: tl.constexpr, PTX: tl.constexpr):
    row, token = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    noise = negative_gumbel(tl.load(key_T2 + row * 2), tl.load(key_T2 + row * 2 + 1), token, PTX)
    tl.store(noise_TV + row * BLOCK * tl.num_programs(1) + token, noise)


def test_gumbel_noise_is_precise_for_winning_draws():
    key_T2, size = keys(8), 2**17
    noise_TV = torch.empty(8, size, device=DEVICE)
    _noise[8, 8](key_T2, noise_TV, BLOCK=size // 8, PTX=DEVICE.type == "cuda")
    uniform_TV = hash.uniform(hash.token_hash(key_T2, size)).double()
    assert 1 - uniform_TV.max() < 1e-5
    assert (noise_TV - (-uniform_TV.log2()).log2()).abs().max() < 6e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_predict_kernels_match_plain_predict_at_each_rows_temperature(dtype):
    hidden_TH, head_VH = eighths(18, 24, dtype=dtype), eighths(140, 24, dtype=dtype)
    temperature_T = torch.linspace(0.4, 2.5, 18, device=DEVICE)
    mine = fast(hidden_TH, head_VH, temperature_T)
    theirs = plain(hidden_TH, head_VH, temperature_T)
    assert_same(mine, theirs)
    assert (mine.candidate_C != mine.argmax_C).any() and (mine.candidate_C == mine.argmax_C).any(), (
        "candidates must both equal and differ from the argmax"
    )


# One block; one more row and token; and a last block with only its first quarter in the vocabulary.
@pytest.mark.parametrize(("tokens", "vocabulary"), [(16, 64), (17, 65), (1, 80), (3, 40)])
def test_predict_kernels_match_plain_predict_at_ragged_sizes(tokens, vocabulary):
    hidden_TH, head_VH = eighths(tokens, 24) / 4, eighths(vocabulary, 24)
    # All logits are far below zero: zeros outside the vocabulary would be the largest, and overflow.
    hidden_TH[:, 0], head_VH[:, 0] = 4.0, -2.0
    temperature_T = torch.full((tokens,), 0.05, device=DEVICE)
    # Logits of -150 have an ulp of 1.5e-5, which becomes a relative error of their exponentials.
    assert_same(fast(hidden_TH, head_VH, temperature_T), plain(hidden_TH, head_VH, temperature_T), tolerance=2e-4)


def test_predict_kernels_take_separate_head_and_embedding():
    hidden_TH, head_VH, embedding_VH = eighths(5, 24), eighths(70, 24), eighths(70, 24)
    mine = vocab_kernel.predict(hidden_TH, head_VH, embedding_VH, SCALE, SOFTCAP, torch.ones(5, device=DEVICE), keys(5))
    theirs = reference(hidden_TH, head_VH, embedding_VH, SCALE, SOFTCAP, torch.ones(5, device=DEVICE), keys(5), [5])
    assert_same(mine, theirs)


def powers(*shape, dtype=torch.float32):
    """Return numbers that are exact in FP8 with the scale of a row whose largest is one, and whose sums are exact in
    bfloat16.
    """
    found = (torch.randint(0, 2, shape) * 2 - 1) * 2.0 ** -torch.randint(0, 2, shape)
    found[:, 0] = 1
    return found.to(DEVICE, dtype)


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "dtype"),
    [(16, 64, torch.float32), (17, 70, torch.bfloat16)],
)
def test_predict_kernels_match_with_fp8_head_and_table(tokens, vocabulary, dtype):
    """Rows have different scales; head and table are one matrix, or two."""
    hidden_TH = powers(tokens, 80, dtype=dtype)
    size_V1 = 2.0 ** -torch.randint(0, 2, (vocabulary, 1), device=DEVICE)
    head_VH, other_VH = (FORMATS["fp8"].quantize("head", powers(vocabulary, 80) * size_V1) for _ in range(2))
    temperature_T = torch.linspace(0.4, 2.5, tokens, device=DEVICE)
    for table_VH in (head_VH, other_VH):
        given = head_VH, table_VH, SCALE, SOFTCAP, temperature_T, keys(tokens)
        mine, theirs = vocab_kernel.predict(hidden_TH, *given), reference(hidden_TH.float(), *given, [tokens])
        # Probabilities have ten bits; in bfloat16 those of the plain version would have seven.
        assert_same(mine, replace(theirs, soft_CH=theirs.soft_CH.to(dtype)), tolerance=1e-3)


@pytest.mark.parametrize("size", [0.0, 1e-6, 64.0])
def test_fp8_table_tolerates_a_row_of_extreme_scale(size):
    """A row of zeros, as for unused tokens; a negligible one; and one so large that all others are small."""
    table_VH = torch.randn(400, 80, device=DEVICE) * 0.002
    table_VH[9] *= size
    head_VH, packed = (FORMATS["fp8"].quantize("table", table) for table in (powers(400, 80), table_VH))
    given = head_VH, packed, SCALE, SOFTCAP, torch.full((7,), 1.0, device=DEVICE), keys(7)
    hidden_TH = powers(7, 80, dtype=torch.bfloat16) / 2
    mine, theirs = vocab_kernel.predict(hidden_TH, *given), reference(hidden_TH.float(), *given, [7])
    assert (mine.soft_CH - theirs.soft_CH).norm() < 3e-3 * theirs.soft_CH.norm()


# in one quarter, one block, two blocks
@pytest.mark.parametrize("pair", [(3, 9), (9, 50), (9, 140), (70, 150)], ids=str)
def test_argmax_of_equal_logits_is_the_lowest_token(pair):
    hidden_TH, head_VH = torch.ones(2, 8, device=DEVICE), eighths(160, 8)
    head_VH[list(pair)] = 2.0
    assert fast(hidden_TH, head_VH).argmax_C.tolist() == [pair[0]] * 2


@pytest.mark.parametrize(("dtype", "packed"), [(torch.float32, False), (torch.bfloat16, True)])
def test_predict_kernels_are_batch_invariant(dtype, packed):
    hidden_TH = torch.randn(20, 32, device=DEVICE).to(dtype)
    head_VH = torch.randn(100, 32, device=DEVICE).to(dtype) / 4
    head_VH = FORMATS["fp8"].quantize("head", head_VH) if packed else head_VH
    temperature_T, key_T2 = torch.linspace(0.4, 2.5, 20, device=DEVICE), keys(20)
    among = fast(hidden_TH, head_VH, temperature_T, key_T2)
    for rows in ([17], [19, 17]):
        alone = fast(hidden_TH[rows], head_VH, temperature_T[rows], key_T2[rows])
        for name in NAMES:
            assert torch.equal(getattr(alone, name), getattr(among, name)[rows]), (rows, name)


def test_logits_saturated_by_the_softcap_stay_finite_and_tie():
    hidden_TH = torch.ones(2, 8, device=DEVICE)
    head_VH = torch.where(torch.arange(100, device=DEVICE) % 3 == 1, 2.0**17, -(2.0**17))[:, None].repeat(1, 8)
    head_VH[40:] *= 2  # larger before the cap, equal after it
    temperature_T = torch.tensor([0.05, 1.0], device=DEVICE)
    mine = fast(hidden_TH, head_VH, temperature_T)
    assert_same(mine, plain(hidden_TH, head_VH, temperature_T))
    assert mine.argmax_C.tolist() == [1, 1]
    assert all(getattr(mine, name).isfinite().all() for name in NAMES)
    torch.testing.assert_close(mine.entropy_C, torch.full((2,), 33.0, device=DEVICE).log())


@pytest.mark.parametrize("place", [0, 63, 99])
def test_certain_prediction_has_zero_entropy_and_its_tokens_embedding(place):
    hidden_TH = torch.ones(2, 8, device=DEVICE)
    head_VH = torch.full((100, 8), -100.0, device=DEVICE)
    head_VH[place] = 100.0
    found = fast(hidden_TH, head_VH, torch.full((2,), 0.1, device=DEVICE))
    assert found.entropy_C.tolist() == [0.0, 0.0]
    assert found.confidence_C.tolist() == [1.0, 1.0]
    assert found.argmax_C.tolist() == found.candidate_C.tolist() == [place, place]
    assert torch.equal(found.soft_CH, head_VH[[place, place]] * SCALE)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_row_gives_a_valid_token_and_leaves_other_rows_unchanged():
    hidden_TH, head_VH = eighths(3, 24), eighths(70, 24)
    hidden_TH[1] = float("nan")
    found = fast(hidden_TH, head_VH)
    assert 0 <= found.argmax_C[1] < 70 and 0 <= found.candidate_C[1] < 70
    rest = [0, 2]
    alone = fast(hidden_TH[rest], head_VH, key_T2=keys(3)[rest])
    for name in NAMES:
        assert torch.equal(getattr(found, name)[rest], getattr(alone, name)), name


def test_predict_kernels_reject_mixed_dtypes_and_wide_keys():
    hidden_TH, head_VH = eighths(3, 24), eighths(70, 24)
    with pytest.raises(InputError, match="one dtype"):
        fast(hidden_TH, head_VH.bfloat16())
    with pytest.raises(InputError, match="keys int32"):
        fast(hidden_TH, head_VH, key_T2=keys(3).long())


# --- the most probable tokens -----------------------------------------------------------------------------------------


# Several tiles with a ragged last one, fewer tiles than tokens to find, and one tile.
@pytest.mark.parametrize(
    ("tokens", "vocabulary", "dtype"), [(5, 330, torch.bfloat16), (3, 130, torch.float32), (1, 40, torch.float32)]
)
def test_likely_tokens_match_plain_operations(tokens, vocabulary, dtype):
    """Logits are multiples of an eighth, so many of them are equal: the lowest tokens come first."""
    hidden_TH, head_VH = eighths(tokens, 24, dtype=dtype), eighths(vocabulary, 24, dtype=dtype)
    temperature_T = torch.linspace(0.4, 2.5, tokens, device=DEVICE)
    given = hidden_TH, head_VH, temperature_T
    mine, theirs = (predict(*given, soft=False, likely=True) for predict in (fast, plain))
    assert_same(mine, theirs, names=LIKELY_NAMES)
    assert torch.equal(mine.likely_CK[:, 0], mine.argmax_C)
    without = fast(*given, soft=False)
    assert without.likely_CK is None and without.likely_logit_CK is None


def test_the_plain_order_of_equal_tokens_is_ascending():
    hidden_TH, head_VH = torch.ones(2, 8, device=DEVICE), torch.zeros(300, 8, device=DEVICE)
    head_VH[[7, 70, 290]] = 1.0
    for predict in (fast, plain):
        found = predict(hidden_TH, head_VH, soft=False, likely=True)
        assert found.likely_CK.tolist() == [[7, 70, 290, *range(7), *range(8, 14)]] * 2


def test_likely_tokens_are_found_in_any_tiles():
    """In one tile, in the last tile, in as many tiles as there are tokens, and after others in the same tile."""
    head_VH = torch.zeros(330, 8, device=DEVICE)
    for tokens in ([3, 4, 5, 6], [320, 325, 329, 64], [300, 10, 70, 140], [200, 201, 0, 202]):
        head_VH.zero_()
        head_VH[tokens] = torch.tensor([4.0, 3.0, 2.0, 1.0], device=DEVICE)[:, None]
        found = fast(torch.ones(1, 8, device=DEVICE), head_VH, soft=False, likely=True)
        assert found.likely_CK[0, :4].tolist() == tokens


@pytest.mark.parametrize("levels", [2, 30, 100_000], ids=lambda levels: f"{levels} values")
def test_likely_tokens_of_many_tiles_are_the_first_of_a_stable_sort(levels):
    """Few values: most tokens, and tiles, are equal. The last tile is ragged."""
    tiles, width, vocabulary = 37, 64, 37 * 64 - 50
    stored_TV = torch.randint(0, levels, (3, tiles * width), device=DEVICE).float() * (20 / levels) - 15
    padded_TV = stored_TV.masked_fill(torch.arange(tiles * width, device=DEVICE) >= vocabulary, -1e30)
    peak_TP = padded_TV.unflatten(-1, (tiles, width)).amax(-1)
    found = most_likely(stored_TV, SOFTCAP, peak_TP, vocabulary, 16)
    expected_TK = padded_TV.sort(dim=-1, descending=True, stable=True).indices[:, :16]
    assert torch.equal(found.token_TK, expected_TK)
    capped_TK = SOFTCAP * (padded_TV.take_along_dim(expected_TK, -1) / SOFTCAP).tanh()
    torch.testing.assert_close(found.logit_TK, capped_TK, rtol=1e-5, atol=1e-5)


def test_likely_tokens_are_batch_invariant_and_change_nothing_else():
    hidden_TH, head_VH = torch.randn(5, 16, device=DEVICE), torch.randn(150, 16, device=DEVICE) / 4
    temperature_T, key_T2 = torch.linspace(0.4, 2.5, 5, device=DEVICE), keys(5)
    among = fast(hidden_TH, head_VH, temperature_T, key_T2, likely=True)
    without = fast(hidden_TH, head_VH, temperature_T, key_T2)
    rows = [4, 2]
    alone = fast(hidden_TH[rows], head_VH, temperature_T[rows], key_T2[rows], likely=True)
    for name in (*NAMES, *LIKELY_NAMES):
        assert torch.equal(getattr(alone, name), getattr(among, name)[rows]), name
    for name in NAMES:
        assert torch.equal(getattr(without, name), getattr(among, name)), name
    assert all(getattr(without, name) is None for name in LIKELY_NAMES)
