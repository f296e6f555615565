"""The kernels of a step against the plain step, to the bit: in Triton's interpreter, or on a GPU.

B canvases, C positions, H hidden, V vocabulary.
"""

from types import SimpleNamespace

import pytest
import torch

from examples.samplers import rules
from gesso.backends.cuda.canvases import Canvases
from gesso.backends.cuda.kernels.advance import advances
from gesso.backends.cuda.noise import KernelSource
from gesso.diffusion.canvas import FREE, Process
from gesso.diffusion.noise import HashSource
from gesso.diffusion.prediction import Prediction
from gesso.model.transformer import DiffusionGemma
from gesso.settings import Diffusion, choose

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
V, H = 50, 16
STATE = ("tokens_C", "pin_C", "accepted_C", "step", "soft_CH")
OUTPUTS = ("ints", "floats", "flags", "soft_BCH", "converged_B")


class Ends:
    """A model without layers: an embedding table."""

    def __init__(self, table_VH):
        self.embed_scale = 4.0
        self.decoder = SimpleNamespace(embed_tokens=SimpleNamespace(weight=table_VH))

    def embed(self, ids, stack):
        return stack.embed_tokens.weight[ids] * self.embed_scale

    conditioning = DiffusionGemma.conditioning


class PlainKernelSource(HashSource):
    """The same draws, in a captured pass without the kernels of a step."""

    at = KernelSource.at


def canvases(settings, count, length, fused):
    """Return noise with two pins, in the tensors of a captured pass."""
    generator = torch.Generator().manual_seed(length)
    tokens_BC = torch.randint(V, (count, length), generator=generator).to(DEVICE)
    process = Process(
        settings=settings,
        source=KernelSource() if fused else PlainKernelSource(),
        seed=torch.arange(count, device=DEVICE) - 7,
        vocab_size=V,
        eos=frozenset({1}),
        device=DEVICE,
    )
    made = Canvases(process, tokens_BC, torch.zeros(count, length, H, device=DEVICE))
    assert bool(made.kernels) == fused
    made.canvas.index.copy_(torch.arange(count) + (1 << 24))
    made.canvas.pin_C[:, : length // 8] = 3
    made.past_MBC.fill_(FREE)
    return made


def prediction(step, count, length, still):
    """Return a prediction. Entropies are eighths of few values: many are equal, and all sums are exact."""
    generator = torch.Generator().manual_seed(0 if still else step)

    def integers(limit):
        return torch.randint(limit, (count * length,), generator=generator).to(DEVICE)

    entropy_T = integers(4) / 64 if still else integers(20) / 8
    soft_TH = torch.randn(count * length, H, generator=generator).to(DEVICE)
    return Prediction(integers(V), integers(V), integers(9) / 8, entropy_T, soft_TH)


@pytest.mark.parametrize(
    "options, converges, count, length",
    [
        ({}, False, 1, 70),  # more than one program per canvas
        ({"confidence": 1.0}, True, 2, 64),  # exactly one
        ({"confidence": 1.0, "stability": 2, "steps": 7}, True, 1, 20),
        ({"stability": 0, "confidence": 1.0}, True, 1, 20),
        ({"stopping": "fixed", "entropy_bound": 2.0}, False, 1, 20),
    ],
    ids=str,
)
def test_step_kernels_match_the_plain_step(options, converges, count, length):
    settings = Diffusion(**{"settle": 0, **options})
    fused, plain = (canvases(settings, count, length, fused) for fused in (True, False))
    model = Ends(torch.randn(V, H, device=DEVICE))
    accepted, seen = set(), False
    for step in range(4):
        inputs, outputs = [], []
        for each in (fused, plain):
            temperature_T, key_T2 = torch.zeros(count * length, device=DEVICE), torch.zeros(count * length, 2)
            key_T2 = key_T2.to(DEVICE, torch.int32)
            each.prepare(temperature_T, key_T2)
            outputs.append(each.step(prediction(step, count, length, still=step > 0), model))
            inputs.append((temperature_T, key_T2))
        assert all(torch.equal(a, b) for a, b in zip(*inputs, strict=True))
        assert all(torch.equal(*(getattr(each, name) for each in outputs)) for name in OUTPUTS), step
        assert all(torch.equal(getattr(fused.canvas, name), getattr(plain.canvas, name)) for name in STATE), step
        assert torch.equal(fused.past_MBC, plain.past_MBC), step
        accepted |= set(outputs[1].flags[0].unique().tolist())
        seen |= bool(outputs[1].converged_B.any())
    assert accepted == {True, False} and seen == converges, "the test should see every case"


def test_fully_pinned_canvas_has_converged():
    for fused in (True, False):
        made = canvases(Diffusion(stopping="fixed", settle=0), 2, 20, fused)
        made.canvas.pin_C[1] = 4
        made.prepare(torch.zeros(40, device=DEVICE), torch.zeros(40, 2, dtype=torch.int32, device=DEVICE))
        after = made.step(prediction(0, 2, 20, still=False), Ends(torch.randn(V, H, device=DEVICE)))
        assert after.converged_B.tolist() == [False, True]


def test_position_without_a_number_as_entropy_is_not_accepted():
    found = []
    for fused in (True, False):
        made = canvases(Diffusion(settle=0), 1, 20, fused)
        given = prediction(0, 1, 20, still=False)
        given.entropy_C[7] = torch.nan
        made.prepare(torch.zeros(20, device=DEVICE), torch.zeros(20, 2, dtype=torch.int32, device=DEVICE))
        after = made.step(given, Ends(torch.randn(V, H, device=DEVICE)))
        found.append(after.flags[0].clone())
    assert torch.equal(*found) and not found[0][0, 7]


@pytest.mark.parametrize(
    "options",
    [
        {"greed": 0.5},
        {"settle": 1},
        {"eos_settles": True},
        {"sampler": rules.Credit()},
        {"stopping": rules.Plateau()},
        {"write": "tokens"},
        {"write": "verified"},
    ],
    ids=str,
)
def test_other_settings_take_the_plain_step(options):
    plain = Diffusion(settle=0)
    assert advances(plain) and not advances(choose(plain, **options))
