"""A canvas and its denoising step. A step makes a new canvas, so any of them can be kept and resumed.

B canvases, C positions, H hidden, V vocabulary, E end-of-text tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import Tensor

from gesso.diffusion.moment import StepContext
from gesso.diffusion.noise import Draws, NoiseSource, TokenDraws
from gesso.diffusion.prediction import Prediction
from gesso.diffusion.samplers import sampler_of
from gesso.diffusion.schedule import temperature
from gesso.diffusion.stopping import stopping_of
from gesso.diffusion.truncation import draw_within
from gesso.rules import Need
from gesso.settings import Diffusion

FREE = -1  # in `pin_C`: the position is not pinned
N = TypeVar("N", int, Tensor)
S = TypeVar("S", "Canvas", "State[Tensor]")


@dataclass(frozen=True)
class State(Generic[N]):
    """The state that a denoising step changes: of one canvas, or of several with the same length and settings.

    With several, every tensor has a leading dimension B, and index and step are tensors [B] that the host does not
    read. A denoising step works on the last dimension, so it is the same code for both.
    """

    index: N  # number of the canvas in the text
    attempt: int  # 1 if the canvas is drawn again, with other random numbers
    tokens_C: Tensor
    pin_C: Tensor  # the token a position must hold, or FREE
    step: N  # steps taken
    soft_CH: Tensor | None = None  # self-conditioning for the next step
    history: tuple[Prediction, ...] = ()
    accepted_C: Tensor | None = None  # positions that took a predicted token in the last step
    steady_C: Tensor | None = None  # successive steps in which a position took the same token, its most probable one
    settled_C: Tensor | None = None  # positions whose token the process has pinned
    reason: str | None = None  # why the canvas is done: "converged" or "steps"
    draft: tuple[int, ...] = ()  # tokens that verified decoding expects after those of this canvas

    @property
    def result_C(self) -> Tensor:
        """The text of the canvas: the most probable tokens of the last prediction, not the last sample."""
        return self.history[-1].argmax_C


@dataclass(frozen=True)
class Canvas(State[int]):
    """The canvas of one request."""

    @property
    def final(self) -> int:
        """Number of leading tokens that no later step can change: settled tokens, and the caller's pins."""
        return int((self.pin_C != FREE).cumprod(-1).sum())


@dataclass(frozen=True, kw_only=True)
class Process:
    """The diffusion process of one request: everything that determines its canvases but the network's predictions."""

    settings: Diffusion
    source: NoiseSource
    seed: int | Tensor  # of one canvas, or of several [B]
    vocab_size: int
    eos: frozenset[int]
    device: torch.device

    def blank(self, index: int, length: int, pins: Mapping[int, int], attempt: int = 0) -> Canvas:
        """Return a canvas of noise, with its pins in place."""
        pin_C = torch.full((length,), FREE, device=self.device)
        for position, token in pins.items():
            pin_C[position] = token
        if self.settings.token_by_token:  # the network does not read it
            return Canvas(index, attempt, torch.zeros_like(pin_C), pin_C, 0)
        noise_C = self._draws(index, attempt, step=0).tokens(length, self.vocab_size)
        return Canvas(index, attempt, torch.where(pin_C == FREE, noise_C, pin_C), pin_C, 0)

    def temperature(self, canvas: Canvas) -> float:
        """Return the temperature of the step that the canvas is about to take."""
        return temperature(self.settings, self.settings.steps - canvas.step)

    def draws(self, canvas: State[N]) -> Draws:
        """Return the random numbers of the step that the canvas is about to take."""
        if self.settings.verified:
            # By the number of a token, as if each were a canvas of its own. The first position of a canvas is known.
            assert isinstance(self.seed, int) and isinstance(canvas.index, int)
            first, length = canvas.index, len(canvas.tokens_C) // 2
            numbers = [max(first, first + i - 1) for i in range(length)] + [first + i for i in range(length)]
            return TokenDraws(self.source, self.seed, numbers, self.device)
        return self._draws(canvas.index, canvas.attempt, canvas.step + 1)

    def candidates(self, canvas: Canvas, logits_CV: Tensor) -> Tensor:
        """Return one token [C] drawn from each position's distribution, within top_k, top_p and min_p."""
        draws = self.draws(canvas)
        if self.settings.restricts_draws:
            return draw_within(self.settings, logits_CV, draws)
        return draws.candidates(logits_CV)

    def advance(self, canvas: Canvas, prediction: Prediction) -> Canvas:
        """Take one denoising step, and apply the stopping rule."""
        advanced = self.evolve(canvas, prediction)
        judged_C = self.judged(advanced)
        converged = not judged_C.any() or bool(self._stops(advanced, judged_C))
        # Logits are for the rules of this step only: a history of them would take gigabytes.
        *earlier, now = advanced.history
        history = (*earlier, replace(now, logits_CV=None))
        return replace(advanced, history=history, reason=self.reason(converged, advanced.step))

    def reason(self, converged: bool, step: int) -> str | None:
        """Return why a canvas is done after this step, or None if it is not."""
        return "converged" if converged else "steps" if step == self.settings.steps else None

    def evolve(self, canvas: S, prediction: Prediction) -> S:
        """Keep the pins, sample, renoise and settle.

        With the default source and a built-in sampler, this and `converged` read nothing on the host. They can be
        captured in a graph, for several canvases at a time.
        """
        remaining = self.settings.steps - canvas.step
        pinned_C = canvas.pin_C != FREE
        prediction = replace(_with_pins(prediction, canvas.pin_C), remaining=remaining)
        sampler = sampler_of(self.settings)
        moment = StepContext(
            settings=self.settings,
            remaining=remaining,
            vocab_size=self.vocab_size,
            draws=self.draws(canvas),
            history=_last(canvas.history, sampler.memory),
            accepted_C=canvas.accepted_C,
        )
        if self.is_greedy:
            # The noise also serves as random number: a position takes its candidate or its noise, never both.
            greedy_C = moment.noise(prediction.argmax_C) < self.greedy_below
            candidate_C = torch.where(greedy_C, prediction.argmax_C, prediction.candidate_C)
            prediction = replace(prediction, candidate_C=candidate_C)
        if self.settings.token_by_token:  # the text is the draw
            prediction = replace(prediction, argmax_C=prediction.candidate_C)
        next_C, accepted_C = sampler(canvas.tokens_C, prediction, moment)
        advanced = replace(
            canvas,
            tokens_C=torch.where(pinned_C, canvas.pin_C, next_C),
            step=canvas.step + 1,
            soft_CH=prediction.soft_CH,
            history=(*canvas.history, replace(prediction, soft_CH=None)),
            accepted_C=accepted_C,
        )
        return _settle(canvas, advanced, self.settings) if self.settles else advanced

    def judged(self, canvas: State[N]) -> Tensor:
        """Return the positions that the stopping rule considers."""
        judged_C = canvas.pin_C == FREE
        if canvas.settled_C is not None:  # unlike the caller's pins, settled positions count
            judged_C = judged_C | canvas.settled_C
        if self.settings.eos_settles:
            judged_C = judged_C & ~after_first(canvas.result_C, self.eos_E)
        return judged_C

    def converged(self, canvas: State[Tensor]) -> Tensor:
        """Return whether each of several canvases [B] has converged by the stopping rule."""
        judged_C = self.judged(canvas)
        return ~judged_C.any(-1) | self._stops(canvas, judged_C)

    def _stops(self, canvas: State[N], judged_C: Tensor) -> bool | Tensor:
        """Apply the stopping rule."""
        stopping = stopping_of(self.settings)
        return stopping(_last(canvas.history, 1 + stopping.memory), judged_C, self.settings)

    @cached_property
    def needs(self) -> frozenset[Need]:
        """The fields of a prediction that sampler and stopping rule read in addition to the usual ones."""
        return sampler_of(self.settings).needs | stopping_of(self.settings).needs

    @cached_property
    def memory(self) -> int:
        """The number of earlier predictions that sampler and stopping rule read."""
        return max(sampler_of(self.settings).memory, stopping_of(self.settings).memory)

    @cached_property
    def reads_host(self) -> bool:
        """Whether sampler or stopping rule read values on the host, so that no captured pass can apply them."""
        return sampler_of(self.settings).reads_host or stopping_of(self.settings).reads_host

    # Of several canvases, these may be tensors: see `gesso/backends/cuda/slots.py`.
    @property
    def is_greedy(self) -> bool:
        return self.settings.greed > 0

    @property
    def greedy_below(self) -> float | Tensor:
        """The noise token below which a position takes its most likely token."""
        return self.settings.greed * self.vocab_size

    @property
    def settles(self) -> bool:
        return self.settings.settle > 0

    @cached_property
    def eos_E(self) -> Tensor:
        return torch.tensor(sorted(self.eos), device=self.device)

    def _draws(self, index: N, attempt: int, step: N) -> Draws:
        return self.source.at(self.seed, index + (attempt << 24), step, self.device)


def _last(history: Sequence[Prediction], count: int) -> Sequence[Prediction]:
    """Return the last `count` predictions: what a rule declares as its `memory`, in captured passes and outside."""
    return history[-count:] if count else ()


def _with_pins(prediction: Prediction, pin_C: Tensor) -> Prediction:
    """Return the prediction with certain pins, and without the likely tokens, which only a constraint reads."""
    pinned_C = pin_C != FREE
    return replace(
        prediction,
        candidate_C=torch.where(pinned_C, pin_C, prediction.candidate_C),
        argmax_C=torch.where(pinned_C, pin_C, prediction.argmax_C),
        confidence_C=prediction.confidence_C.masked_fill(pinned_C, 1.0),
        entropy_C=prediction.entropy_C.masked_fill(pinned_C, 0.0),
        likely_CK=None,
        likely_logit_CK=None,
    )


def _settle(before: S, after: S, settings: Diffusion) -> S:
    """Pin the prefix in which every position has taken the same token for `settle` steps.

    A step counts only if the position's entropy was below `confidence`, the bound for whole canvases. Without that
    condition, one answer in forty of our own small model came out worse.

    From then on the network sees these tokens as certain, and a stream may show them. Whether anyone watches the stream
    does not matter, so the text is the same either way.
    """
    assert after.accepted_C is not None
    token_C = after.result_C
    sure_C = after.history[-1].entropy_C < settings.confidence
    took_C = after.accepted_C & sure_C & (after.tokens_C == token_C)
    if before.steady_C is None:
        steady_C = took_C.long()
    else:
        same_C = (before.steady_C > 0) & (before.tokens_C == token_C)
        steady_C = torch.where(took_C, torch.where(same_C, before.steady_C, 0) + 1, 0)
    free_C = after.pin_C == FREE
    prefix_C = (~free_C | (steady_C >= settings.settle)).cumprod(-1).bool()
    newly_C = prefix_C & free_C
    settled_C = newly_C if before.settled_C is None else before.settled_C | newly_C
    return replace(after, pin_C=torch.where(newly_C, token_C, after.pin_C), steady_C=steady_C, settled_C=settled_C)


def after_first(tokens_C: Tensor, eos_E: Tensor) -> Tensor:
    """Return the positions after the first end-of-text token."""
    is_eos_C = (tokens_C[..., None] == eos_E).any(-1)
    return is_eos_C.cumsum(-1) - is_eos_C.long() > 0
