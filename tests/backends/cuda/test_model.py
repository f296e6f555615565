"""The CUDA backend against the plain model, in every weight format."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from gesso.checkpoint import random_weights
from gesso.checkpoint.parameters import assign
from gesso.checkpoint.quantize.formats import FORMATS, format_of
from gesso.checkpoint.quantize.packed import Packed
from gesso.diffusion.canvas import Canvas, Process
from gesso.diffusion.noise import HashSource
from gesso.model.config import Config
from gesso.model.init import begin
from gesso.model.transformer import DiffusionGemma
from gesso.settings import Diffusion

pytest.importorskip("triton")
from gesso.backends.base import Backend, Piece  # noqa: E402
from gesso.backends.cuda import CudaBackend, linear, supports  # noqa: E402
from gesso.backends.cuda.activations import AdaptedMatrix, NextNorm  # noqa: E402
from gesso.backends.cuda.canvases import Slots  # noqa: E402
from gesso.backends.cuda.kernels import rows  # noqa: E402
from gesso.backends.cuda.network import run_layer  # noqa: E402
from gesso.backends.cuda.packed import PackedPass  # noqa: E402
from gesso.backends.cuda.pass_sizes import Expected, PassSize  # noqa: E402
from gesso.backends.torch import TorchBackend  # noqa: E402
from gesso.model.rope import frequencies, rotation  # noqa: E402
from tests.backends.passes import Reading, denoise, encode  # noqa: E402

# Enough experts to be sorted; widths that are multiples of the steps of the four-bit kernels.
TEXT = {
    "vocab_size": 128, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "global_head_dim": 64, "num_global_key_value_heads": 1, "num_experts": 6,
    "top_k_experts": 2, "moe_intermediate_size": 64, "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def config():
    return random_weights.config_of("mini", **TEXT)


def make(config: Config, format: str | None) -> DiffusionGemma:
    model = DiffusionGemma(config)
    begin(model, seed=0)
    if format is not None:
        for name, tensor in list(model.named_parameters()):
            if name.startswith("decoder") and (found := format_of(name, tensor.shape, format)):
                assign(model, name, found.quantize(name, tensor.detach()))
    return model


def mix(model: DiffusionGemma) -> DiffusionGemma:
    """Pack matrices as files of other tools do: formats differ within a product, and between a layer's experts."""
    endings = {
        "embed_tokens.weight": "fp8", "q_proj.weight": "fp8", "v_proj.weight": "fp8", "mlp.gate_proj.weight": "fp8",
        "self_conditioning.up_proj.weight": "fp8", "experts.gate_up_proj": "uint4", "experts.down_proj": "fp8",
    }  # fmt: skip
    for name, weight in list(model.named_parameters()):
        for ending, format in endings.items():
            if name.endswith(ending):
                assign(model, name, FORMATS[format].quantize(name, weight.detach()))
    return model


def logits(backend: Backend, batch: int) -> torch.Tensor:
    ids_BS = torch.arange(batch * 5).view(batch, 5) * 12
    cache = backend.model.new_cache(batch, 64)
    encode(backend, ids_BS, cache)
    canvas_BC = torch.arange(batch * 3).view(batch, 3) * 7
    return denoise(backend, canvas_BC, cache, torch.arange(batch * 3 * 128).view(batch, 3, 128).sin() * 5)


# In int4 all matrices but the experts are FP8; FP8 experts are in the next test. nvfp4 takes the same path as int4.
# Rows are kept apart in the same way in every format.
@pytest.mark.parametrize("format, batch", [(None, 2), ("int4", 1)])
def test_cuda_backend_matches_logits_of_the_plain_model(config, format, batch):
    model = make(config, format)
    expected, found = logits(TorchBackend(model), batch), logits(CudaBackend(model), batch)
    error = (found - expected).norm() / expected.norm()
    # With FP8 matrices, activations are rounded too, unlike in the plain model (and the interpreter rounds badly).
    assert error < (1e-4 if format is None else 0.3)
    assert (error > 1e-3) == (format is not None)


def test_cuda_backend_runs_a_model_of_mixed_formats():
    config = random_weights.config_of("mini", **TEXT | {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})
    model = mix(make(config, None))
    assert {module.format for module in model.modules() if isinstance(module, Packed)} == {"fp8", "uint4"}
    backend = CudaBackend(model)
    assert backend.graphs.backend.can_capture
    expected, found = logits(TorchBackend(model), 1), logits(backend, 1)
    error = (found - expected).norm() / expected.norm()
    assert 1e-3 < error < 0.2, "only FP8 matrices round activations"


def test_dense_products_of_different_formats_equal_separate_products():
    x_TI, weights = torch.randn(6, 64), [torch.randn(size, 64) for size in (32, 16, 16)]
    fp8, plain, other = (FORMATS["fp8"].quantize("w", weights[0]), *weights[1:])
    matrices = [AdaptedMatrix(each) for each in (fp8, plain, other)]
    found = linear.linears(x_TI, matrices, [2, 4])
    for each, matrix in zip(found, matrices, strict=True):
        assert torch.equal(each, linear.linear(x_TI, matrix, [6]))
    torch.testing.assert_close(found[1], F.linear(x_TI, plain))
    gate = AdaptedMatrix(FORMATS["fp8"].quantize("w", plain))
    for pair in ((gate, matrices[2]), (matrices[2], gate)):
        one, two = (linear.linear(x_TI, matrix, [6]) for matrix in pair)
        assert torch.equal(linear.gated(x_TI, *pair, [6]), F.gelu(one, approximate="tanh") * two)


def packed_pass(passes, size, cache):
    expected = Expected(batch=2, canvas=8, prefill=16)
    return PackedPass(passes, size, Slots(expected.batch, expected.canvas, passes.model), expected, cache)


@torch.no_grad()
def test_padded_texts_share_a_graph_and_keep_their_bits():
    """tests/gpu/test_real_width.py does the same in every format."""
    config = random_weights.config_of("mini", **TEXT | {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})
    passes = CudaBackend(make(config, None)).graphs.backend
    caches = [passes.model.new_cache(1, 64) for _ in range(2)]
    reading = Reading(0, (7, 5, 3))
    packed = packed_pass(passes, PassSize(canvases=0, texts=16), caches[1])
    expected = passes.run([Piece(0, torch.tensor(reading.text), causal=True)], caches[0])
    assert torch.equal(packed.run([reading], caches[1]).scored[0], expected[0])
    (plain,), (padded,) = (cache.layers for cache in caches)
    assert torch.equal(plain.k[0], padded.k[0]) and torch.equal(plain.v[0], padded.v[0])


def with_image(image_SH):
    """Return the pieces of a pass: a text with an image in it, its canvas, and another text."""
    text, canvas = torch.tensor([5, 9, 11]), torch.tensor([4, 8, 15])
    image = Piece(0, torch.zeros(len(image_SH), dtype=torch.long), causal=True, image_SH=image_SH)
    return [Piece(1, text.flip(0), True), Piece(0, text, True), image, Piece(0, text, True), Piece(0, canvas, False)]


@torch.no_grad()
def test_images_match_the_plain_model():
    """The image is longer than the window. `test_attention.py` has more cases."""
    config = random_weights.config_of("mini", **TEXT | {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})
    model, pieces = make(replace(config, bidirectional_images=True), None), with_image(torch.randn(7, 128))
    caches = [model.new_cache(2, 64) for _ in range(2)]
    plain, found = (
        each.run(pieces, cache) for each, cache in zip((TorchBackend(model), CudaBackend(model)), caches, strict=True)
    )
    for ours, theirs in zip(found, plain, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert caches[0].lengths == caches[1].lengths == [13, 3]
    (ours,), (theirs,) = (cache.layers for cache in caches)
    torch.testing.assert_close(ours.k[0], theirs.k[0], atol=1e-4, rtol=1e-4)


class SegmentsOnly(CudaBackend):
    """A pass returns its segments in place of hidden states."""

    def plan(self, segments, *_):
        return segments

    def flow(self, segments, pieces):
        return segments


@pytest.mark.parametrize("bidirectional", [True, False])
def test_an_image_is_a_block_if_the_checkpoint_says_so(config, bidirectional):
    backend = SegmentsOnly(make(replace(config, bidirectional_images=bidirectional), None))
    segments = backend.run(with_image(torch.zeros(7, 128)), backend.model.new_cache(2, 64))
    assert [segment.block for segment in segments] == [False, False, bidirectional, False, False]
    assert [segment.causal for segment in segments] == [True, True, True, True, False]


@dataclass
class Writing:
    """A request with a text to read and a canvas to denoise, for a captured pass."""

    row: int
    texts: tuple[tuple[int, ...], ...]
    canvas: Canvas
    process: Process
    adapter = None
    needs_all_logits = is_constrained = has_pins = False

    @property
    def denoising(self):
        return self

    @property
    def pieces(self):
        return [*((len(text), "text") for text in self.texts), (len(self.canvas.tokens_C), "canvas")]


@torch.no_grad()
def test_packed_canvases_keep_their_bits():
    """tests/gpu/test_real_width.py does the same in several formats."""
    config = random_weights.config_of("mini", **TEXT | {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})
    passes = CudaBackend(make(config, None)).graphs.backend
    model = passes.model
    caches = [model.new_cache(2, 64) for _ in range(2)]
    process = partial(Process, source=HashSource(), vocab_size=128, eos=frozenset(), device=model.device)
    work = []
    for row, (text, length) in enumerate((((1, 2, 3, 4, 5), 5), ((), 3))):
        own = process(settings=Diffusion(steps=4 + row), seed=row)
        work.append(Writing(row, (text,) if text else (), own.blank(0, length, {}), own))
    packed = packed_pass(passes, PassSize(canvases=10, texts=6, any_canvases=True), caches[1])
    steps = packed.run(work, caches[1]).steps()
    for item, step in zip(work, steps, strict=True):
        pieces = [Piece(item.row, torch.tensor(text), causal=True) for text in item.texts]
        hidden = passes.run([*pieces, Piece(item.row, item.canvas.tokens_C, causal=False)], caches[0])
        assert torch.equal(step.hidden_CH, hidden[-1])
        assert step.after.step == 1 and len(step.after.tokens_C) == len(item.canvas.tokens_C)
    assert caches[0].lengths == caches[1].lengths == [5, 0]
    (plain,), (found,) = (cache.layers for cache in caches)
    assert torch.equal(plain.k[0], found.k[0]) and torch.equal(plain.v[0], found.v[0])


@torch.no_grad()
@pytest.mark.parametrize("format", [None, "fp8", "int4"])
def test_cuda_layer_matches_the_plain_layer(config, format):
    model = make(config, format)
    layer, x_TH = model.decoder.layers[0], torch.randn(7, 128)
    angles = rotation(torch.arange(7), frequencies(config.layers[0], model.device), torch.float32)
    scalar_T1 = torch.full((7, 1), 0.9)

    def attend(q_TND, k_TMD, v_TMD, low=False):
        return q_TND + v_TMD.repeat_interleave(q_TND.shape[1] // v_TMD.shape[1], 1)

    expected, _ = layer(x_TH, attend, angles, scalar_T1)
    first, last = layer.input_layernorm, NextNorm(model.decoder.norm.weight, None)
    normed = rows.norm_for(x_TH, first.weight, first.eps, "fp8" if format else None)
    found, after = run_layer(layer, x_TH, normed, [3, 4], attend, angles, scalar_T1, last)
    error = (found - expected).norm() / expected.norm()
    assert error < (1e-5 if format is None else 0.15)
    torch.testing.assert_close(after, model.decoder.norm(found))


def test_cuda_backend_does_not_support_float16_and_odd_widths(config):
    model = make(config, None)
    assert supports(model) and not supports(model.half())
    assert not supports(make(random_weights.config_of("mini", **TEXT | {"hidden_size": 136}), None))
