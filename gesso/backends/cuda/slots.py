"""The canvases of a server's captured passes: of any length up to a limit, each with its own settings.

`Canvases` fixes the settings of all its canvases. Here the numbers of the settings are tensors, so requests with other
temperatures, bounds or numbers of steps take the same captured step. Only the rules are fixed: the sampler
`entropy-bound` with the stopping rules `stable` and `fixed`. Requests with other rules get the prediction of the pass,
and take their step outside of it.

A canvas that is shorter than its slot is followed by pinned positions. Their entropy is zero and no rule considers
them, so they change nothing: see `tests/backends/cuda/test_packed.py`.

B slots, C longest canvas, H hidden, E end-of-text tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gesso.backends.base import Denoising
from gesso.backends.cuda.canvases import Advanced, Canvases, canvas_after, converged, holds
from gesso.diffusion.canvas import Canvas, Process
from gesso.diffusion.hash import send
from gesso.diffusion.noise import HashSource
from gesso.diffusion.prediction import Prediction
from gesso.diffusion.samplers import EntropyBound
from gesso.diffusion.stopping import Stopping, mean_entropy
from gesso.model.transformer import DiffusionGemma
from gesso.settings import Diffusion

MEMORY = 2  # largest `stability` of a step in a captured pass: that of the presets
EOS = 8  # most end-of-text tokens of a request
NO_TOKEN = -1
NUMBERS = (
    "steps", "t_max", "t_min", "entropy_bound", "confidence", "stops_below", "stability", "settle", "greedy_below",
)  # fmt: skip


def numbers(process: Process) -> dict[str, float]:
    """Return the numbers of a request's settings. Values that switch a rule off need no operation of their own."""
    settings, fixed = process.settings, process.settings.stopping == "fixed"
    return {
        **{name: getattr(settings, name) for name in ("steps", "t_max", "t_min", "entropy_bound", "confidence")},
        "stops_below": -1.0 if fixed else settings.confidence,  # no entropy is negative
        "stability": 0 if fixed else settings.stability,
        "settle": settings.settle or math.inf,
        "greedy_below": process.greedy_below,
    }


def takes_step(request: Denoising) -> bool:
    """Return whether the step of a captured pass is that of this request."""
    settings = request.process.settings
    fits = settings.stopping == "fixed" or (settings.stopping == "stable" and settings.stability <= MEMORY)
    ends = not settings.eos_settles or len(request.process.eos) <= EOS
    denoises = settings.sampler == "entropy-bound" and not settings.by_token
    return fits and ends and denoises and not settings.restricts_draws


@dataclass(frozen=True)
class StableOrFixed(Stopping):
    """`StableAndConfident` with other numbers for each canvas; a fixed number of steps never stops early."""

    stability_B: Tensor
    below_B: Tensor

    @property
    def memory(self) -> int:
        return MEMORY

    def __call__(self, history: Sequence[Prediction], judged_C: Tensor, settings: Diffusion) -> Tensor:
        *earlier, now = history
        mean_B = mean_entropy(now, judged_C)
        done_B = mean_B < self.below_B.to(mean_B.dtype)
        for back, past in enumerate(reversed(earlier), start=1):
            same_B = ((past.argmax_C == now.argmax_C) | ~judged_C).all(-1)
            done_B = done_B & (same_B | (self.stability_B < back))
        return done_B


class _Settings(Diffusion):
    """Settings with tensors as numbers. They have been checked request by request."""

    def __post_init__(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class _Process(Process):
    """The process of canvases with different settings. All rules apply; numbers switch them off."""

    below_B1: Tensor

    @property
    def is_greedy(self) -> bool:
        return True

    @property
    def greedy_below(self) -> Tensor:
        return self.below_B1

    @property
    def settles(self) -> bool:
        return True


class Slots(Canvases):
    """The tensors of canvases with different lengths and settings. Each has a slot, and keeps it."""

    def __init__(self, count: int, length: int, model: DiffusionGemma, source: HashSource) -> None:
        device, config = model.device, model.config
        self.count, self.length = count, length
        # In float32 where a number is compared with float32 values, as torch converts it.
        self.double_KB = torch.ones(len(NUMBERS), count, dtype=torch.float64, device=device)
        self.single_KB = self.double_KB.float()
        self.eos_B1E = torch.full((count, 1, EOS), NO_TOKEN, device=device)
        double, single = (dict(zip(NUMBERS, table.unbind(), strict=True)) for table in (self.double_KB, self.single_KB))
        values: dict[str, Any] = {
            **{name: double[name] for name in ("steps", "t_max", "t_min")},
            **{name: single[name][:, None] for name in ("confidence", "settle")},
            "sampler": EntropyBound(double["entropy_bound"][:, None]),
            "stopping": StableOrFixed(double["stability"], double["stops_below"]),
            "eos_settles": True,
        }
        process = _Process(
            settings=_Settings(**values),
            source=source,
            seed=torch.zeros(count, dtype=torch.long, device=device),
            vocab_size=config.vocab_size,
            eos=frozenset(),
            device=device,
            below_B1=single["greedy_below"][:, None],
        )
        vars(process)["eos_E"] = self.eos_B1E  # in place of the cached property
        tokens_BC = torch.zeros(count, length, dtype=torch.long, device=device)
        self.soft_BCH = torch.zeros(count, length, config.hidden_size, dtype=model.dtype, device=device)
        super().__init__(process, tokens_BC, self.soft_BCH)
        self.clear()

    def clear(self) -> None:
        """Empty all slots, so that nothing in them is out of range."""
        self.held = [None] * self.count
        for tensor in (self.canvas.tokens_C, self.canvas.pin_C, self.soft_BCH):
            tensor.zero_()

    def place(self, requests: Sequence[Denoising]) -> list[int]:
        """Return a slot for each request. Copy its canvas there, unless a slot already holds it."""
        unclaimed = dict(enumerate(self.held))
        slot_of: dict[int, int] = {}  # slot by the number of a request whose canvas is already in it
        for number, request in enumerate(requests):
            slot = next((slot for slot, canvas in unclaimed.items() if holds(canvas, request)), None)
            if slot is not None:
                slot_of[number] = slot
                del unclaimed[slot]

        free_slots = iter(unclaimed)
        slots: list[int] = []
        for number, request in enumerate(requests):
            if number in slot_of:
                slots.append(slot_of[number])
            else:
                slots.append(next(free_slots))
                self._put(slots[-1], request)
        self.held = [None] * self.count  # until the step has succeeded
        return slots

    def _put(self, i: int, request: Denoising) -> None:
        super()._put(i, request)
        process = request.process
        values = torch.tensor([numbers(process)[name] for name in NUMBERS], dtype=torch.float64)
        self.double_KB[:, i] = send(values, self.double_KB.device)
        self.single_KB[:, i] = send(values.float(), self.double_KB.device)
        eos = sorted(process.eos)[:EOS] if process.settings.eos_settles else []
        self.eos_B1E[i, 0] = send(torch.tensor([*eos, *[NO_TOKEN] * (EOS - len(eos))]), self.double_KB.device)

    def step(self, prediction: Prediction, model: DiffusionGemma) -> Advanced:
        # The tensors keep the self-conditioning; another copy in each captured pass would take more memory than all
        # its other results.
        return replace(super().step(prediction, model), soft_BCH=self.soft_BCH)

    def advanced(self, placed: Sequence[tuple[int, Denoising]], advanced: Advanced) -> list[Canvas]:
        """Return the canvases after the step of requests in these slots."""
        if not placed:
            return []
        flags, after = converged([request for _, request in placed], advanced), []
        copies = replace(
            advanced, ints=advanced.ints.clone(), floats=advanced.floats.clone(), flags=advanced.flags.clone()
        )
        for slot, request in placed:
            canvas = canvas_after(request, slot, copies, flags[slot])
            assert canvas.soft_CH is not None
            after.append(replace(canvas, soft_CH=canvas.soft_CH.clone()))
            self.held[slot] = after[-1], request.process
        return after
