"""The kernel of `logits_of` against all logits: in Triton's interpreter, or on a GPU.

C positions, U tokens, V vocabulary, H hidden. Blocks are small, so that small matrices have several and a ragged last
one.
"""

from types import SimpleNamespace

import pytest
import torch

from gesso.backends.cuda.kernels import asked
from gesso.backends.torch import TorchBackend
from gesso.checkpoint.quantize.formats import FORMATS
from gesso.model.transformer import DiffusionGemma

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SOFTCAP = 30.0


class Head:
    """The head of a model without layers."""

    def __init__(self, head_VH):
        self.head, self.config = head_VH, SimpleNamespace(final_logit_softcapping=SOFTCAP)

    logits = DiffusionGemma.logits

    def named_modules(self, remove_duplicate):
        return ()


def powers(*shape):
    """Return numbers that are exact in FP8 with the scale of a row whose largest is one, and whose sums are exact."""
    found = (torch.randint(0, 2, shape) * 2 - 1) * 2.0 ** -torch.randint(0, 2, shape)
    found[:, 0] = 1
    return found.to(DEVICE)


@pytest.mark.parametrize("packed", [False, True], ids=["float32", "fp8"])
@pytest.mark.parametrize(("positions", "count"), [(64, 64), (70, 130), (1, 1), (3, 0)])
def test_asked_logits_are_those_of_the_whole_vocabulary(positions, count, packed):
    hidden_CH, head_VH = powers(positions, 80), powers(203, 80) / 2
    head_VH = FORMATS["fp8"].quantize("head", head_VH) if packed else head_VH
    tokens_U = torch.randint(0, 203, (count,), device=DEVICE)
    found_CU = asked.logits_of(hidden_CH, head_VH, SOFTCAP, tokens_U)
    expected_CU = TorchBackend(Head(head_VH)).logits_of(hidden_CH, tokens_U)
    assert found_CU.dtype == torch.float32
    torch.testing.assert_close(found_CU, expected_CU, rtol=1e-5, atol=1e-5)


def test_a_logit_does_not_depend_on_the_other_tokens_or_positions():
    hidden_CH, head_VH = torch.randn(70, 72, device=DEVICE), torch.randn(203, 72, device=DEVICE)
    all_CV = asked.logits_of(hidden_CH, head_VH, SOFTCAP, torch.arange(203, device=DEVICE))
    for tokens in ([7], [150, 7, 7], list(range(202, 0, -5))):
        tokens_U = torch.tensor(tokens, device=DEVICE)
        assert torch.equal(asked.logits_of(hidden_CH, head_VH, SOFTCAP, tokens_U), all_CV[:, tokens_U])
        assert torch.equal(asked.logits_of(hidden_CH[65:], head_VH, SOFTCAP, tokens_U), all_CV[65:, tokens_U])


def test_asked_logits_near_the_cap_are_finite_and_ordered():
    hidden_CH = torch.ones(1, 16, device=DEVICE)
    head_VH = torch.tensor([-1e6, -2.0, 0.0, 2.0, 1e6], device=DEVICE)[:, None].repeat(1, 16)
    (found,) = asked.logits_of(hidden_CH, head_VH, SOFTCAP, torch.arange(5, device=DEVICE)).tolist()
    assert found == sorted(found) and found[0] == -SOFTCAP and found[2] == 0.0 and found[4] == SOFTCAP
