"""A canvas and its one step. A canvas never changes: a step makes the next one, so any of them can be kept and resumed.

C positions, H hidden, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gesso.diffusion.noise import Draws, Source
from gesso.diffusion.prediction import Prediction
from gesso.diffusion.samplers import Moment, sampler_of
from gesso.diffusion.schedule import temperature
from gesso.diffusion.stopping import stopping_of
from gesso.settings import Diffusion

FREE = -1  # in `pin_C`: a position that is not pinned


@dataclass(frozen=True)
class Canvas:
    """One canvas; or, inside the engine, several [B, C] under the same settings, with tensors [B] for numbers."""

    index: Any  # which canvas of the text
    attempt: int  # 1 when the canvas is drawn again with another hash
    tokens_C: Tensor
    pin_C: Tensor  # the token a position must hold, or FREE
    step: Any = 0  # steps done
    soft_CH: Tensor | None = None  # self-conditioning for the next step
    history: tuple[Prediction, ...] = ()
    accepted_C: Tensor | None = None  # positions that took a predicted token in the last step
    steady_C: Tensor | None = None  # steps in a row in which a position took the same token, its likeliest
    settled_C: Tensor | None = None  # positions whose token the process itself has pinned
    reason: str | None = None  # why it is done: "converged" or "steps"

    @property
    def result_C(self) -> Tensor:
        """The text of a canvas is the likeliest token of the last prediction, not the last sample."""
        return self.history[-1].argmax_C

    @property
    def final(self) -> int:
        """How many tokens from the first on no later step can change: those that settled, and the caller's pins."""
        return int((self.pin_C != FREE).cumprod(-1).sum())


@dataclass(frozen=True, kw_only=True)
class Process:
    """All that decides how a canvas of one request goes, except the network's predictions."""

    settings: Diffusion
    source: Source
    seed: int | Tensor  # one, or those of several canvases [B]
    vocab_size: int
    eos: frozenset[int]
    device: torch.device

    def blank(self, index: int, length: int, pins: Mapping[int, int], attempt: int = 0) -> Canvas:
        """A canvas of noise, with its pins in place."""
        pin_C = torch.full((length,), FREE, device=self.device)
        for position, token in pins.items():
            pin_C[position] = token
        if self.settings.autoregressive:  # nobody looks at it
            return Canvas(index, attempt, torch.zeros_like(pin_C), pin_C)
        noise_C = self._draws(index, attempt, step=0).tokens(length, self.vocab_size)
        return Canvas(index, attempt, torch.where(pin_C == FREE, noise_C, pin_C), pin_C)

    def temperature(self, canvas: Canvas) -> Any:
        return temperature(self.settings, self.settings.steps - canvas.step)

    def draws(self, canvas: Canvas) -> Draws:
        """The random numbers of the step the canvas is about to take."""
        return self._draws(canvas.index, canvas.attempt, canvas.step + 1)

    def advance(self, canvas: Canvas, prediction: Prediction) -> Canvas:
        """One denoising step, and whether the canvas stands after it."""
        advanced = self.evolve(canvas, prediction)
        judged_C = self.judged(advanced)
        converged = not judged_C.any() or bool(stopping_of(self.settings)(advanced.history, judged_C))
        return replace(advanced, reason=self.reason(converged, advanced.step))

    def reason(self, converged: bool, step: int) -> str | None:
        return "converged" if converged else "steps" if step == self.settings.steps else None

    def evolve(self, canvas: Canvas, prediction: Prediction) -> Canvas:
        """Keep the pins, sample, renoise, settle. With the default source and a sampler of ours, this and `standing`
        ask nothing of the host and can be captured in a graph, for several canvases at a time."""
        pinned_C = canvas.pin_C != FREE
        prediction = replace(
            prediction,
            candidate_C=torch.where(pinned_C, canvas.pin_C, prediction.candidate_C),
            argmax_C=torch.where(pinned_C, canvas.pin_C, prediction.argmax_C),
            confidence_C=prediction.confidence_C.masked_fill(pinned_C, 1.0),
            entropy_C=prediction.entropy_C.masked_fill(pinned_C, 0.0),
        )
        moment = Moment(self.settings, self.settings.steps - canvas.step, self.vocab_size, self.draws(canvas))
        if self.settings.greed:
            # The noise of a position is its coin: a position takes its candidate or its noise, never both.
            greedy_C = moment.noise(prediction.argmax_C) < self.settings.greed * self.vocab_size
            candidate_C = torch.where(greedy_C, prediction.argmax_C, prediction.candidate_C)
            prediction = replace(prediction, candidate_C=candidate_C)
        if self.settings.autoregressive:  # the draw is the text
            prediction = replace(prediction, argmax_C=prediction.candidate_C)
        next_C, accepted_C = sampler_of(self.settings)(canvas.tokens_C, prediction, moment)
        advanced = replace(
            canvas,
            tokens_C=torch.where(pinned_C, canvas.pin_C, next_C),
            step=canvas.step + 1,
            soft_CH=prediction.soft_CH,
            history=(*canvas.history, replace(prediction, soft_CH=None, logits_CV=None)),
            accepted_C=accepted_C,
        )
        return _settle(canvas, advanced, self.settings) if self.settings.settle else advanced

    def judged(self, canvas: Canvas) -> Tensor:
        """The positions that decide whether a canvas stands."""
        judged_C = canvas.pin_C == FREE
        if canvas.settled_C is not None:  # they were not given: they count, as they would if they could still change
            judged_C = judged_C | canvas.settled_C
        if self.settings.eos_settles:
            judged_C = judged_C & ~_after_first(canvas.result_C, self.eos_E)
        return judged_C

    def standing(self, canvas: Canvas) -> Tensor:
        """Whether each of several canvases stands, as far as `stopping` says; [B]."""
        judged_C = self.judged(canvas)
        return ~judged_C.any(-1) | stopping_of(self.settings)(canvas.history, judged_C)

    @cached_property
    def eos_E(self) -> Tensor:
        return torch.tensor(sorted(self.eos), device=self.device)

    def _draws(self, index: int, attempt: int, step: int) -> Draws:
        return self.source.at(self.seed, index + (attempt << 24), step, self.device)


def _settle(before: Canvas, after: Canvas, settings: Diffusion) -> Canvas:
    """Pin the prefix in which every position has taken the same token for `settle` steps.

    A position that was not as sure as a canvas must be (`confidence`) does not count as having taken it: pinned on the
    word of the sampler alone, one answer in forty of our own small model came out worse.

    From then on the network sees these tokens as certain, and the stream may show them. The rule knows nothing of
    whether somebody watches, so the text is the same either way.
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
    now_C = prefix_C & free_C
    settled_C = now_C if before.settled_C is None else before.settled_C | now_C
    return replace(after, pin_C=torch.where(now_C, token_C, after.pin_C), steady_C=steady_C, settled_C=settled_C)


def _after_first(tokens_C: Tensor, eos_E: Tensor) -> Tensor:
    """The positions after the first end of text."""
    is_eos_C = (tokens_C[..., None] == eos_E).any(-1)
    return is_eos_C.cumsum(-1) - is_eos_C.long() > 0
