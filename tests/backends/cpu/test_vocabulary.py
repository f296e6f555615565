"""The prediction of one position in one kernel, against that of the torch backend with the same logits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("numba")
from gesso.backends.cpu import CpuBackend  # noqa: E402
from gesso.backends.torch import TorchBackend  # noqa: E402
from gesso.checkpoint import random_weights  # noqa: E402
from gesso.diffusion.hash import position_keys  # noqa: E402
from gesso.diffusion.prediction import Prediction  # noqa: E402
from tests.backends.cpu.test_backend import TEXT  # noqa: E402

VOCABULARY = 592  # two parts and a vector


@pytest.fixture
def backend() -> CpuBackend:
    config = random_weights.config_of("mini", **{**TEXT, "vocab_size": VOCABULARY})
    return CpuBackend(random_weights.make(config, torch.device("cpu"), torch.float32, "int4", on_cpu=True))


def inputs(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    hidden_1H = torch.randn(1, 160, generator=torch.Generator().manual_seed(seed)) * (1 + seed % 7)
    return hidden_1H, torch.tensor([0.3 + seed % 3]), position_keys(seed, 0, 0, 2, 1, torch.device("cpu"))


def plain(backend: CpuBackend, seed: int, soft: bool = False) -> Prediction:
    return TorchBackend.predict(backend, *inputs(seed), [1], soft)


def test_one_position_has_the_prediction_of_the_torch_backend(backend):
    tokens = set()
    for seed in range(40):
        found, expected = backend.predict(*inputs(seed), [1], soft=False), plain(backend, seed)
        assert torch.equal(found.argmax_C, expected.argmax_C) and torch.equal(found.candidate_C, expected.candidate_C)
        torch.testing.assert_close(found.confidence_C, expected.confidence_C, rtol=1e-5, atol=0)
        torch.testing.assert_close(found.entropy_C, expected.entropy_C, rtol=1e-4, atol=1e-6)
        tokens |= {found.argmax_C.item(), found.candidate_C.item()}
    assert min(tokens) < 64 and max(tokens) > VOCABULARY - 64, "tokens of all parts are found"


def test_the_last_tokens_of_a_vocabulary_are_found(backend):
    head = backend.model.head.dense()
    for token in (0, 15, 16, 255, 256, VOCABULARY - 1):
        aligned_1H = 20 * F.normalize(head[token : token + 1])
        found = backend.predict(aligned_1H, torch.tensor([0.1]), inputs(0)[2], [1], soft=False)
        assert found.argmax_C.item() == found.candidate_C.item() == token


def test_a_position_has_the_same_bits_beside_a_canvas_and_other_texts(backend):
    alone = [backend.predict(*inputs(seed), [1], soft=False) for seed in range(2)]
    canvas = torch.randn(5, 160), torch.ones(5), position_keys(9, 0, 0, 2, 5, torch.device("cpu"))
    joined = [torch.cat(each) for each in zip(inputs(0), canvas, inputs(1), strict=True)]
    together = backend.predict(*joined, [1, 5, 1], soft=True).split([1, 5, 1])
    for found, expected in zip((together[0], together[2]), alone, strict=True):
        assert torch.equal(found.candidate_C, expected.candidate_C)
        assert torch.equal(found.confidence_C, expected.confidence_C)
        assert torch.equal(found.entropy_C, expected.entropy_C)
    torch.testing.assert_close(together[0].soft_CH, plain(backend, 0, soft=True).soft_CH)


def test_invalid_logits_are_not_hidden(backend):
    hidden_1H, temperature_1, key_12 = inputs(0)
    hidden_1H[0, 5] = torch.nan
    found = backend.predict(hidden_1H, temperature_1, key_12, [1], soft=False)
    assert found.confidence_C.isnan().all() and found.entropy_C.isnan().all()
    assert 0 <= found.candidate_C.item() < VOCABULARY and 0 <= found.argmax_C.item() < VOCABULARY
