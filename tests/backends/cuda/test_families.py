"""Kernels that do not compile or launch: plain operations take the place of their family, and nothing else changes.

In Triton's interpreter, in float32. `tests/gpu/test_families.py` does the same in captured passes.
"""

import subprocess
from types import SimpleNamespace

import pytest
import torch

from gesso import GessoError, adapters
from gesso.cards.named import CARDS
from gesso.cards.running import playing
from gesso.checkpoint import random_weights
from gesso.checkpoint.parameters import assign
from gesso.checkpoint.quantize.formats import FORMATS
from gesso.engine.engine import Engine
from gesso.engine.request import Request
from gesso.model.init import begin
from gesso.model.transformer import DiffusionGemma
from gesso.settings import Diffusion

pytest.importorskip("triton")
from triton.runtime.errors import OutOfResources, PTXASError  # noqa: E402

from gesso.backends.base import Piece  # noqa: E402
from gesso.backends.cuda import CudaBackend, _check_repeatable  # noqa: E402
from gesso.backends.cuda.families import FAMILIES, KernelError, Kernels, is_of_kernel, launching  # noqa: E402
from gesso.backends.cuda.kernels import attention, experts, linear, rows, vocab  # noqa: E402
from gesso.backends.torch import TorchBackend  # noqa: E402
from tests.backends.cuda.gluon_imports import first_imports  # noqa: E402
from tests.backends.cuda.test_model import TEXT  # noqa: E402

# One kernel of each family, and the way in which it fails.
BROKEN = {
    "attention": (attention, "_attend", OutOfResources(142336, 101376, "shared memory")),
    "products": (linear, "_product", PTXASError("ptxas exited with error code 255")),
    "experts": (experts, "_up", OutOfResources(142336, 101376, "shared memory")),
    "vocabulary end": (vocab, "_logits", OutOfResources(268288, 232448, "shared memory")),
    "rows": (rows, "_add_norms", RuntimeError("Triton Error [CUDA]: invalid argument")),
}
PASS_FAMILIES = [family for family in FAMILIES if family != "vocabulary end"]  # its kernels need 16 bits


class Broken:
    """A kernel that fails when it is launched."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getitem__(self, grid: object) -> "Broken":
        return self

    def __call__(self, *args: object, **options: object) -> None:
        raise self.error


def break_family(monkeypatch, family: str, error: Exception | None = None) -> None:
    module, kernel, usual = BROKEN[family]
    monkeypatch.setattr(module, kernel, Broken(error or usual))  # every kernel works in the interpreter


@pytest.fixture(autouse=True)
def no_gluon_module_is_imported():
    """As on a card without Gluon kernels, although other tests of the process may have let an H100 run."""
    with first_imports():
        yield


@pytest.fixture(scope="module")
def model():
    one_layer = TEXT | {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    model = DiffusionGemma(random_weights.config_of("mini", **one_layer))
    begin(model, seed=0)
    return model


def request(seed: int, prompt: int = 5) -> Request:
    settings = Diffusion(canvas_length=4, steps=2, stopping="fixed")
    return Request(prompt=tuple(range(2, 2 + prompt)), max_new_tokens=4, diffusion=settings, seed=seed)


def texts(model, backend, requests) -> list[tuple[int, ...]]:
    """Return the tokens of requests that run together."""
    engine, tokens = Engine(model, str, backend=backend), {}
    ids = [engine.submit(each) for each in requests]
    while engine.busy:
        for event in engine.step():
            if event.kind == "done":
                tokens[event.request_id] = event.result.tokens
    return [tokens[each] for each in ids]


@pytest.mark.parametrize("family", PASS_FAMILIES)
def test_the_text_of_each_request_in_a_batch_is_that_of_plain_operations(model, monkeypatch, caplog, family):
    expected = [texts(model, TorchBackend(model), [request(seed)])[0] for seed in (1, 2)]
    break_family(monkeypatch, family)
    backend = CudaBackend(model)
    assert texts(model, backend, [request(1), request(2)]) == expected
    (warning,) = caplog.messages
    assert repr(family) in warning and "interpreter" in warning and "report" in warning
    assert str(BROKEN[family][2]).splitlines()[-1] in warning, "the reason"
    assert backend.kernels == Kernels(frozenset({family}))


@pytest.mark.parametrize("family", PASS_FAMILIES)
def test_the_hidden_states_of_a_piece_do_not_depend_on_the_others(model, family):
    """To the last bit, with any family in plain operations, for texts and canvases of several lengths."""
    backend = CudaBackend(model)
    backend.kernels = Kernels(frozenset({family}))
    pieces = [(0, 3, True), (1, 2, True), (0, 4, False), (1, 2, False)]

    def hidden(chosen: list[tuple[int, int, bool]]) -> list[torch.Tensor]:
        made = [Piece(row, torch.arange(length) + 3 * row, causal) for row, length, causal in chosen]
        return backend.run(made, model.new_cache(2, 64))

    together, apart = hidden(pieces), [hidden([each for each in pieces if each[0] == row]) for row in (0, 1)]
    for found, alone in zip(together, (apart[0][0], apart[1][0], apart[0][1], apart[1][1]), strict=True):
        assert torch.equal(found, alone)
    plain = TorchBackend(model).run(
        [Piece(row, torch.arange(length) + 3 * row, causal) for row, length, causal in pieces], model.new_cache(2, 64)
    )
    for found, expected in zip(together, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_plain_vocabulary_end_predicts_like_the_plain_model(model, monkeypatch, caplog):
    half = DiffusionGemma(model.config).bfloat16()
    half.load_state_dict(model.state_dict())
    backend = CudaBackend(half)
    backend.kernels = Kernels(frozenset({"products"}))  # the interpreter multiplies bfloat16 wrongly
    break_family(monkeypatch, "vocabulary end")
    hidden_TH = torch.randn(5, 128, dtype=torch.bfloat16)
    given = hidden_TH, torch.full((5,), 0.7), torch.arange(10, dtype=torch.int32).view(5, 2), [2, 3]
    found, expected = backend.predict(*given), TorchBackend(half).predict(*given)
    assert torch.equal(found.candidate_C, expected.candidate_C) and torch.equal(found.soft_CH, expected.soft_CH)
    assert not backend.kernels.run("vocabulary end") and len(caplog.messages) == 1


def test_a_server_becomes_ready_without_captured_passes(model, monkeypatch):
    break_family(monkeypatch, "rows")
    backend = CudaBackend(model)
    cache = model.new_cache(1, 64)
    backend.expect(2, 4, 16)
    backend.compile_expected(cache)
    while backend.captures_left:
        backend.capture_next(cache)
    texts(model, backend, [request(1)])
    assert not backend.graphs.packed and not backend.graphs.can_capture
    backend.fix_kernels()
    assert len(texts(model, backend, [request(2)])) == 1


def test_after_the_warm_up_a_kernel_that_fails_is_an_error(model, monkeypatch):
    backend = CudaBackend(model)
    backend.fix_kernels()
    break_family(monkeypatch, "experts")
    with pytest.raises(KernelError, match="142336"):
        backend.run([Piece(0, torch.arange(3), causal=True)], model.new_cache(1, 8))
    assert not backend.kernels.off


def test_lack_of_memory_stays_an_error(model, monkeypatch):
    for error in (RuntimeError("Triton Error [CUDA]: out of memory"), torch.OutOfMemoryError("CUDA out of memory")):
        assert not is_of_kernel(error)
        break_family(monkeypatch, "experts", error)
        backend = CudaBackend(model)
        with pytest.raises(type(error), match="out of memory"):
            backend.run([Piece(0, torch.arange(3), causal=True)], model.new_cache(1, 8))
        assert not backend.kernels.off


@pytest.mark.parametrize(
    "error",
    [
        OutOfResources(1, 2, "shared memory"),
        PTXASError("x"),
        ImportError("libcuda.so.1"),
        subprocess.CalledProcessError(1, "gcc"),
        RuntimeError("PassManager::run failed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_compilers_and_libraries_are_those_of_a_kernel(error):
    with pytest.raises(KernelError) as raised, launching("rows"):
        raise error
    assert raised.value.family == "rows"
    with pytest.raises(ValueError, match="a bug"), launching("rows"):
        raise ValueError("a bug")


def test_experts_that_are_streamed_need_their_kernels(model, monkeypatch):
    backend = CudaBackend(model)
    backend.stream = SimpleNamespace(buffers=[1], begin=lambda: None, before=lambda _: None, after=lambda _: None)
    break_family(monkeypatch, "experts")
    with pytest.raises(GessoError, match="streamed from host memory"):
        backend.run([Piece(0, torch.arange(3), causal=True)], model.new_cache(1, 8))


def test_a_text_whose_ring_was_overwritten_is_not_repeated():
    """Its first tokens see keys that the failed pass has replaced, so the answer would be another."""
    cache, error = DiffusionGemma(random_weights.config_of("mini", **TEXT)).new_cache(1, 256), KernelError("rows", "x")
    _check_repeatable([(0, 200)], cache, error)  # the first text of a row overwrites nothing
    cache.lengths[0] = 20
    _check_repeatable([(0, 64)], cache, error)  # a ring holds as many tokens beyond its window
    with pytest.raises(GessoError, match="repeated"):
        _check_repeatable([(0, 100)], cache, error)


def test_adapters_change_products_in_plain_operations(model):
    """Matrices that shared a launch have factors of their own then."""
    adapted = DiffusionGemma(model.config)
    adapted.load_state_dict(model.state_dict())
    adapters.add(adapted, adapters.LoraSettings(rank=4, alpha=8.0), "one")
    for name, parameter in adapted.named_parameters():
        if name.endswith(".B"):
            torch.nn.init.normal_(parameter, std=0.05)
    backend = CudaBackend(adapted)
    backend._switch_off(KernelError("products", "broken"))
    piece = Piece(0, torch.arange(6), causal=True, adapter="one")
    found, expected = (each.run([piece], adapted.new_cache(1, 8))[0] for each in (backend, TorchBackend(adapted)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_cards_without_the_kernels_instructions_get_plain_operations(model, caplog):
    class Turing:
        title, capability, runs_kernels = "GeForce RTX 2080", (7, 5), False

    with playing(Turing()):
        from gesso.backends import cuda

        assert not cuda.supports(model)
    assert len(caplog.messages) == 1 and "7.5" in caplog.text


def test_fp8_on_a_card_that_does_not_convert_it_runs_in_plain_operations(model, caplog):
    packed = DiffusionGemma(model.config)
    packed.load_state_dict(model.state_dict())
    name = "decoder.layers.0.mlp.gate_proj.weight"
    assign(packed, name, FORMATS["fp8"].quantize(name, packed.get_parameter(name).detach()))
    for card, off in (("rtx-3090", {"products"}), ("rtx-4090", set())):
        with playing(CARDS[card]):
            assert CudaBackend(packed).kernels.off == off
            assert not CudaBackend(model).kernels.off
    assert len(caplog.messages) == 1


def test_every_family_has_a_broken_kernel_here():
    assert tuple(BROKEN) == FAMILIES
