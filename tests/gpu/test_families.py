"""Families of kernels that do not compile or launch on this GPU: the answer comes, from plain operations.

The kernels fail in earnest: "attention" by tiles that Triton rejects when it compiles, three families by more shared
memory than the card has, "rows" at a launch.
"""

from dataclasses import replace

import pytest
import torch

import gesso
from gesso.backends.base import Piece
from gesso.backends.cuda import CudaBackend
from gesso.backends.cuda.families import FAMILIES
from gesso.backends.cuda.kernels import attention, experts, linear, rows, vocab
from gesso.backends.torch import TorchBackend
from gesso.engine.engine import Engine
from gesso.serve import startup
from tests.backends.cuda.test_families import Broken
from tests.engine_requests import request, result
from tests.gpu.device import DEVICE, DRY_RUN

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(DRY_RUN, reason="the interpreter compiles nothing")]

NO_POWER_OF_TWO = 48  # as a size of a tile: a compilation error
DEEP = linear.Tiling(128, 128, 64, 8, 12)  # 384 KiB of shared memory in bfloat16


def break_family(monkeypatch, family: str) -> None:
    tiles = attention.tiles
    broken = {
        "attention": (
            attention,
            "tiles",
            lambda *given: replace(tiles(*given), roles=False, warps=4, rows=NO_POWER_OF_TWO),
        ),
        "products": (linear, "fitted", lambda *given: DEEP),
        "experts": (experts, "tiling_for", lambda *given: DEEP),
        "vocabulary end": (vocab, "fitted", lambda *given: vocab.LOGITS._replace(stages=12)),
        "rows": (rows, "_add_norms", Broken(RuntimeError("Triton Error [CUDA]: invalid argument"))),
    }
    module, name, instead = broken[family]
    monkeypatch.setattr(module, name, instead)  # on this card every kernel works


@pytest.fixture(scope="module")
def model(untrained_directory):
    return gesso.load(untrained_directory, device=DEVICE).model


@pytest.mark.parametrize("family", FAMILIES)
def test_a_server_warms_up_and_a_seed_has_one_text(model, monkeypatch, caplog, family):
    """Passes would be captured; with a family switched off, they are not. The texts are the same alone and together."""
    break_family(monkeypatch, family)
    engine = Engine(model, str, max_batch=4, prefill=256, backend=CudaBackend(model))
    startup.warm_up(engine, 4)
    assert len([each for each in caplog.messages if repr(family) in each]) == 1
    assert engine.runner.backend.kernels.off == {family}
    wanted = [request(seed=seed, prompt=tuple(range(2, 20 + 7 * seed)), max_new_tokens=24) for seed in range(4)]
    alone = [result(engine, each).tokens for each in wanted]
    ids, together = [engine.submit(each) for each in wanted], {}
    while engine.busy:
        together |= {event.request_id: event.result.tokens for event in engine.step() if event.kind == "done"}
    assert [together[each] for each in ids] == alone
    again = Engine(model, str, max_batch=1, backend=CudaBackend(model))
    assert result(again, wanted[0]).tokens == alone[0], "switched off at first use, in Python"


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_those_of_plain_operations_up_to_rounding(model, monkeypatch, family):
    break_family(monkeypatch, family)
    backend, plain, ids = CudaBackend(model), TorchBackend(model), torch.arange(40, device=DEVICE)
    pieces = [Piece(0, ids, causal=True), Piece(0, ids[:32] + 100, causal=False), Piece(1, ids[:7], causal=True)]
    found, expected = (each.run(pieces, model.new_cache(2, 64)) for each in (backend, plain))
    for one, other in zip(found, expected, strict=True):
        assert (one - other).float().norm() < 0.03 * other.float().norm()
    keys = torch.arange(64, dtype=torch.int32, device=DEVICE).view(32, 2)
    given = found[1], torch.full((32,), 0.7, device=DEVICE), keys, [32]
    one, other = backend.predict(*given), plain.predict(*given)
    assert (one.argmax_C == other.argmax_C).float().mean() > 0.9
    assert backend.kernels.off == {family}


def test_shared_memory_that_does_not_suffice_switches_off(model, monkeypatch, caplog):
    """Triton's OutOfResources, as on a card with less shared memory than a tiling needs."""
    break_family(monkeypatch, "products")
    backend = CudaBackend(model)
    backend.run([Piece(0, torch.arange(5, device=DEVICE), causal=True)], model.new_cache(1, 16))
    assert backend.kernels.off == {"products"} and "shared memory" in caplog.text
