"""One token through all layers in one kernel, against the same operations one by one and against the plain model."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba")
from gesso.backends.base import Backend, Piece  # noqa: E402
from gesso.backends.cpu import CpuBackend  # noqa: E402
from gesso.backends.torch import TorchBackend  # noqa: E402
from gesso.checkpoint.parameters import assign  # noqa: E402
from gesso.checkpoint.quantize.formats import FORMATS  # noqa: E402
from gesso.model.cache import KVCache  # noqa: E402
from gesso.model.transformer import DiffusionGemma  # noqa: E402
from tests.backends.cpu.test_backend import make  # noqa: E402

TOKENS = 10


def short_rings(model: DiffusionGemma, rows: int, tokens: int) -> KVCache:
    """Return a cache whose rings have 5 places, of which a token sees 3: they wrap."""
    return KVCache(model.config, rows, tokens, model.device, model.dtype, spare=2)


def by_token(backend: Backend, rows: tuple[int, ...] = (0,)) -> list[Tensor]:
    """Return the hidden states of a text that is read token by token, in these rows at once."""
    cache, found = short_rings(backend.model, max(rows) + 1, TOKENS), []
    for position in range(TOKENS):
        ids = [torch.tensor([(position * 7 + row * 13) % 128]) for row in rows]
        found += backend.run([Piece(row, each, causal=True) for row, each in zip(rows, ids, strict=True)], cache)
    return found


def unfused(model: DiffusionGemma) -> CpuBackend:
    backend = CpuBackend(model)
    backend.token = None
    return backend


def with_dense_matrices(format: str | None) -> DiffusionGemma:
    """Return a model whose attention and dense MLP have another format; None: that of the others."""
    model = make()
    if format is not None:
        for name, module in list(model.named_modules()):
            if name.endswith("_proj.weight"):
                assign(model, name, FORMATS[format].quantize(name, module.dense()))
    return model


@pytest.mark.parametrize("format", [None, "int4"])
def test_a_token_has_the_hidden_state_of_the_operations_one_by_one(format):
    fused = CpuBackend(with_dense_matrices(format))
    assert fused.token is not None
    steps = zip(by_token(fused), by_token(unfused(with_dense_matrices(format))), strict=True)
    for found, expected in steps:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for found, expected in zip(by_token(fused), by_token(TorchBackend(with_dense_matrices(format))), strict=True):
        assert 1e-6 < (found - expected).norm() / expected.norm() < 0.03, "rows are rounded to 8 bits"


def test_tokens_fill_the_cache_as_the_operations_one_by_one_do():
    caches = []
    for backend in (CpuBackend(make()), unfused(make())):
        cache = short_rings(backend.model, 1, 32)
        for length in (5, 1, 1, 4, 1):
            backend.run([Piece(0, torch.arange(length), causal=True)], cache)
        assert cache.lengths == [12]
        caches.append(cache)
    for layer, expected in zip(*(cache.layers for cache in caches), strict=True):
        torch.testing.assert_close(layer.k[0], expected.k[0], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(layer.v[0], expected.v[0], rtol=1e-3, atol=1e-4)


def test_a_token_has_the_same_bits_beside_others_and_with_any_number_of_threads(own_threads):
    backend = CpuBackend(make())
    together, alone = by_token(backend, (0, 1)), by_token(backend)
    assert all(torch.equal(a, b) for a, b in zip(together[::2], alone, strict=True))
    own_threads(5)  # more than cores
    assert all(torch.equal(a, b) for a, b in zip(by_token(backend), alone, strict=True))


def test_an_invalid_token_state_is_not_hidden():
    model = make()
    model.decoder.layers[0].input_layernorm.weight[3] = torch.nan
    assert by_token(CpuBackend(model))[0].isnan().all()


def test_a_model_with_a_matrix_without_kernels_runs_operation_by_operation():
    for path, format in (
        ("decoder.layers.1.mlp.up_proj.weight", "fp8"),
        ("decoder.layers.0.self_attn.k_proj.weight", "int4"),  # that of the queries is int8
    ):
        model = make()
        dense = model.get_submodule(path).dense()
        assign(model, path, FORMATS[format].quantize(path, dense))
        backend = CpuBackend(model)
        assert backend.token is None
        assert by_token(backend)[0].isfinite().all()


def test_a_model_that_has_moved_does_not_run_with_its_old_weights():
    backend = CpuBackend(make())
    backend.model.to(torch.float64)
    assert by_token(backend)[0].dtype == torch.float64
    backend.model.to(torch.float32)
    backend.model.decoder.norm.weight.zero_()
    assert by_token(backend)[0].eq(0).all()
    backend.drop_captured()
    assert backend.token is not None and backend.token.can_run(backend.model.new_cache(1, 4))
