"""The kernels of a step against the plain step of each canvas, to the bit: in Triton's interpreter, or on a GPU.

B canvases, C positions, H hidden, V vocabulary.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from examples.samplers import rules
from gesso.backends.cuda.canvases import Places, Slots, takes_step
from gesso.diffusion.canvas import Process
from gesso.diffusion.noise import HashSource
from gesso.diffusion.prediction import Prediction
from gesso.model.transformer import DiffusionGemma
from gesso.settings import SETTINGS, Diffusion, choose

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
V, H, LONGEST = 50, 16, 70
SOME_END = frozenset({1, 4})
EXACT = ("tokens_C", "pin_C", "soft_CH", "accepted_C", "steady_C", "settled_C", "step", "reason")


class Ends:
    """A model without layers: an embedding table."""

    device, dtype = DEVICE, torch.float32
    config = SimpleNamespace(hidden_size=H, vocab_size=V)

    def __init__(self):
        table_VH = torch.randn(V, H, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(1))
        self.embed_scale = 4.0
        self.decoder = SimpleNamespace(embed_tokens=SimpleNamespace(weight=table_VH))

    def embed(self, ids, stack):
        return stack.embed_tokens.weight[ids] * self.embed_scale

    conditioning = DiffusionGemma.conditioning


class Writing:
    """A request whose canvas takes steps."""

    has_pins = True

    def __init__(self, seed, length, pins, **options):
        settings = choose(Diffusion(), **options)
        self.process = Process(
            settings=settings, source=HashSource(), seed=seed, vocab_size=V, eos=SOME_END, device=DEVICE
        )
        self.canvas = self.process.blank(seed % 3, length, pins)


def predict(request, step, still, end_at=None):
    """Return a prediction. Entropies are eighths of few values: many are equal, and all sums are exact."""
    length = len(request.canvas.tokens_C)
    generator = torch.Generator().manual_seed(0 if still else 1 + step)

    def integers(limit, low=0):
        return torch.randint(low, limit, (length,), generator=generator).to(DEVICE)

    argmax_C = integers(V, low=5)  # no end of text
    if end_at is not None:
        argmax_C[end_at] = 4
    entropy_C = integers(4) / 64 if still else integers(20) / 8
    soft_CH = torch.randn(length, H, generator=generator).to(DEVICE)
    return Prediction(
        torch.where(integers(3) > 0, argmax_C, integers(V)), argmax_C, integers(9) / 8, entropy_C, soft_CH
    )


def plain_step(model, request, prediction):
    """Return the canvas as the specification advances it."""
    soft_CH = model.conditioning(request.canvas.pin_C, prediction.soft_CH)
    return request.process.advance(request.canvas, replace(prediction, soft_CH=soft_CH))


def kernel_steps(model, slots, requests, predictions, padding=3):
    """Return the canvases as the kernels advance them together, and the inputs of the network."""
    placed = list(zip(slots.place(requests), requests, strict=True))
    lengths = [len(request.canvas.tokens_C) for request in requests]
    places = Places(sum(lengths) + padding, slots.count, slots.length, DEVICE)
    places.fill(tuple(zip([slot for slot, _ in placed], lengths, strict=True)))
    inputs = slots.prepare(places)
    together = Prediction.cat([*predictions, *[predictions[0].split([padding, lengths[0] - padding])[0]]])
    after = slots.step(together, places, model)
    return slots.advanced(placed, after), inputs


CASES = (
    {"settle": 0},
    {"settle": 1, "confidence": 1.0},
    {"settle": 2, "confidence": 1.0, "stopping": "fixed"},
    {"settle": 0, "confidence": 1.0, "stability": 2, "steps": 7},
    {"settle": 0, "confidence": 1.0, "stability": 0},
    {"stopping": "fixed", "entropy_bound": 2.0, "settle": 0},
    {"greed": 0.5, "t_max": 2.0, "t_min": 0.1},
    {"eos_settles": True, "confidence": 1.0, "settle": 1},
)


@pytest.mark.parametrize("length", [20, 64, 70], ids=["within one program", "exactly one", "more than one"])
def test_step_kernels_match_the_plain_step_of_every_canvas(length):
    """Canvases with other settings, lengths, seeds and pins take their steps together, in any slot."""
    model = Ends()
    requests = [
        Writing(2**64 - 1 - number, max(5, length - 3 * number), {0: 3} if number % 2 else {2: 7, 4: 9}, **options)
        for number, options in enumerate(CASES)
    ]
    slots = Slots(len(requests) + 1, LONGEST, model)
    seen = {"accepted": set(), "settled": 0, "reasons": set()}
    for step in range(6):
        predictions = [
            predict(request, step, still=step > 1, end_at=3 if request.process.settings.eos_settles else None)
            for request in requests
        ]
        expected = [plain_step(model, *pair) for pair in zip(requests, predictions, strict=True)]
        found, inputs = kernel_steps(model, slots, requests, predictions)
        start = 0
        for request, before, after in zip(requests, expected, found, strict=True):
            canvas, size = request.canvas, len(request.canvas.tokens_C)
            part = slice(start, start + size)
            start += size
            assert torch.equal(inputs.tokens_T[part], canvas.tokens_C)
            temperature = torch.full((size,), request.process.temperature(canvas), device=DEVICE)
            assert torch.equal(inputs.temperature_T[part], temperature)
            assert torch.equal(inputs.key_T2[part], request.process.draws(canvas).keys(size))
            for name in EXACT:
                one, other = getattr(before, name), getattr(after, name)
                is_equal = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
                assert is_equal, (step, name, request.process.settings)
            for name in ("candidate_C", "argmax_C", "confidence_C", "entropy_C"):
                assert torch.equal(getattr(before.history[-1], name), getattr(after.history[-1], name)), name
            seen["accepted"] |= set(after.accepted_C.tolist())
            seen["settled"] += int(after.settled_C.sum()) if after.settled_C is not None else 0
            seen["reasons"].add(after.reason)
        for request, after in zip(requests, found, strict=True):
            if after.reason is None:
                request.canvas = after
        requests = [request for request in requests if request.canvas.step == step + 1]
        if not requests:
            break
    assert seen["accepted"] == {True, False} and seen["settled"] and {None, "converged"} <= seen["reasons"]


def test_fully_pinned_canvas_has_converged():
    model = Ends()
    requests = [Writing(1, 20, {}, stopping="fixed"), Writing(2, 20, dict.fromkeys(range(20), 4), stopping="fixed")]
    slots = Slots(2, 20, model)
    after, _ = kernel_steps(model, slots, requests, [predict(request, 0, still=False) for request in requests])
    assert [canvas.reason for canvas in after] == [None, "converged"]


def test_position_without_a_number_as_entropy_is_not_accepted():
    model, request = Ends(), Writing(1, 20, {})
    prediction = predict(request, 0, still=False)
    prediction.entropy_C[7] = torch.nan
    expected = plain_step(model, request, prediction)
    (after,), _ = kernel_steps(model, Slots(1, 20, model), [request], [prediction])
    assert torch.equal(after.accepted_C, expected.accepted_C) and not after.accepted_C[7]


def test_a_draft_takes_the_numbers_of_the_request_that_resumes_it():
    """Its canvas may still be in a slot, with those of the request that made it."""
    model, request = Ends(), Writing(1, 20, {})
    slots = Slots(2, 20, model)
    (draft,), _ = kernel_steps(model, slots, [request], [predict(request, 0, still=False)])
    other = Writing(5, 20, {}, entropy_bound=3.0)
    other.canvas = draft
    prediction = predict(other, 1, still=False)
    expected = plain_step(model, other, prediction)
    (after,), _ = kernel_steps(model, slots, [other], [prediction])
    assert torch.equal(after.tokens_C, expected.tokens_C) and torch.equal(after.accepted_C, expected.accepted_C)


OTHERS = {
    "sampler": rules.Credit(),
    "stopping": rules.Plateau(),
    "stability": 3,
    "write": "tokens",
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.1,
}
# Values that the cases above have.
TAKEN = {
    "canvas_length": 8, "confidence": 1.0, "entropy_bound": 2.0, "eos_settles": True, "greed": 0.5, "settle": 2,
    "stability": 2, "steps": 7, "stopping": "fixed", "t_max": 2.0, "t_min": 0.1,
}  # fmt: skip


def test_every_setting_is_implemented_or_refused():
    """A setting that is added later is refused, until the kernels implement it and a case above has it."""
    assert takes_step(Writing(1, 8, {}))
    assert SETTINGS.keys() == OTHERS.keys() | TAKEN.keys()
    assert [name for name, value in TAKEN.items() if not takes_step(Writing(1, 8, {}, **{name: value}))] == []
    assert [name for name, value in OTHERS.items() if takes_step(Writing(1, 8, {}, **{name: value}))] == []
    assert TAKEN.keys() - {"canvas_length"} == {name for case in CASES for name in case}
