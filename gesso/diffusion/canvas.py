"""A canvas, and the denoising step that changes it.

A canvas is a block of tokens that are written together. It starts as random tokens (`Process.blank`). A denoising step
(`Process.advance`) takes the network's prediction for all of its positions and returns the next canvas:

1. Pinned positions, whose token is given, keep it.
2. The sampler accepts the predicted token at some positions. All others get new random tokens.
3. The first tokens of the canvas are settled, which means pinned, once they no longer change (`settling.py`).
4. The stopping rule decides whether the canvas is done.

Canvases are immutable: a step makes a new one, so any of them can be kept and resumed.

C positions, H hidden, V vocabulary, E end-of-text tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gesso.diffusion.moment import StepContext
from gesso.diffusion.noise import Draws, NoiseSource, TokenDraws
from gesso.diffusion.prediction import Prediction
from gesso.diffusion.samplers import sampler_of
from gesso.diffusion.schedule import temperature
from gesso.diffusion.settling import newly_settled, steady_steps
from gesso.diffusion.stopping import stopping_of
from gesso.diffusion.truncation import draw_within
from gesso.rules import Need
from gesso.settings import Diffusion

FREE = -1  # in `pin_C`: the position is not pinned


@dataclass(frozen=True)
class Canvas:
    """A canvas: what a denoising step reads and changes."""

    # Which canvas this is.
    index: int  # its number in the text
    attempt: int  # 1 if the canvas is drawn again, with other random numbers

    # What the network reads in the next step.
    tokens_C: Tensor
    pin_C: Tensor  # the token a position must hold, or FREE
    step: int  # steps taken
    soft_CH: Tensor | None = None  # self-conditioning for the next step

    # What earlier steps did.
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

    @property
    def final(self) -> int:
        """Number of leading tokens that no later step can change: settled tokens, and the caller's pins."""
        return int((self.pin_C != FREE).cumprod(-1).sum())


@dataclass(frozen=True, kw_only=True)
class Process:
    """The diffusion process of one request: everything that determines its canvases but the network's predictions."""

    settings: Diffusion
    source: NoiseSource
    seed: int
    vocab_size: int
    eos: frozenset[int]
    device: torch.device

    # --- the first canvas ---------------------------------------------------------------------------------------

    def blank(self, index: int, length: int, pins: Mapping[int, int], attempt: int = 0) -> Canvas:
        """Return a canvas of random tokens, with its pins in place."""
        pin_C = torch.full((length,), FREE, device=self.device)
        for position, token in pins.items():
            pin_C[position] = token
        if self.settings.token_by_token:  # the network does not read the canvas
            tokens_C = torch.zeros_like(pin_C)
        else:
            noise_C = self._draws(index, attempt, step=0).tokens(length, self.vocab_size)
            tokens_C = torch.where(pin_C == FREE, noise_C, pin_C)
        return Canvas(index=index, attempt=attempt, tokens_C=tokens_C, pin_C=pin_C, step=0)

    # --- before the step: from logits to a prediction -----------------------------------------------------------

    def temperature(self, canvas: Canvas) -> float:
        """Return the temperature of the step that the canvas is about to take."""
        return temperature(self.settings, self.settings.steps - canvas.step)

    def draws(self, canvas: Canvas) -> Draws:
        """Return the random numbers of the step that the canvas is about to take."""
        if self.settings.verified:
            length = len(canvas.tokens_C) // 2
            return TokenDraws.of_verified(self.source, self.seed, canvas.index, length, self.device)
        return self._draws(canvas.index, canvas.attempt, canvas.step + 1)

    def _draws(self, index: int, attempt: int, step: int) -> Draws:
        return self.source.at(self.seed, index + (attempt << 24), step, self.device)

    def candidates(self, canvas: Canvas, logits_CV: Tensor) -> Tensor:
        """Return one token [C] drawn from each position's distribution, within top_k, top_p and min_p."""
        draws = self.draws(canvas)
        if self.settings.restricts_draws:
            return draw_within(self.settings, logits_CV, draws)
        return draws.candidates(logits_CV)

    # --- the step -----------------------------------------------------------------------------------------------

    def advance(self, canvas: Canvas, prediction: Prediction) -> Canvas:
        """Take one denoising step, and apply the stopping rule."""
        advanced = self._evolve(canvas, prediction)
        converged = self._has_converged(advanced)
        # Logits are for the rules of this step only: a history of them would take gigabytes.
        *earlier, latest = advanced.history
        history = (*earlier, replace(latest, logits_CV=None))
        return replace(advanced, history=history, reason=self.reason(converged, advanced.step))

    def _evolve(self, canvas: Canvas, prediction: Prediction) -> Canvas:
        """Take one denoising step without the stopping rule: keep the pins, sample, renoise and settle."""
        remaining = self.settings.steps - canvas.step
        sampler = sampler_of(self.settings)
        context = StepContext(
            settings=self.settings,
            remaining=remaining,
            vocab_size=self.vocab_size,
            draws=self.draws(canvas),
            history=_last(canvas.history, sampler.memory),
            accepted_C=canvas.accepted_C,
        )
        prediction = replace(_with_pins(prediction, canvas.pin_C), remaining=remaining)
        if self.settings.greed > 0:
            prediction = self._with_argmax_for_some(prediction, context)
        if self.settings.token_by_token:  # the text is the draw
            prediction = replace(prediction, argmax_C=prediction.candidate_C)

        sampled_C, accepted_C = sampler(canvas.tokens_C, prediction, context)

        advanced = replace(
            canvas,
            tokens_C=torch.where(canvas.pin_C != FREE, canvas.pin_C, sampled_C),
            step=canvas.step + 1,
            soft_CH=prediction.soft_CH,
            history=(*canvas.history, replace(prediction, soft_CH=None)),
            accepted_C=accepted_C,
        )
        return self._settled(canvas, advanced) if self.settings.settle > 0 else advanced

    def _with_argmax_for_some(self, prediction: Prediction, context: StepContext) -> Prediction:
        """Replace the drawn token by the most probable one at a random part of the positions.

        The noise also serves as random number: a position takes its candidate or its noise, never both.
        """
        greedy_C = context.noise(prediction.argmax_C) < self.settings.greed * self.vocab_size
        return replace(prediction, candidate_C=torch.where(greedy_C, prediction.argmax_C, prediction.candidate_C))

    def _settled(self, before: Canvas, after: Canvas) -> Canvas:
        """Pin the prefix in which every position has taken the same token for `settle` steps.

        A step counts only if the position's entropy was below `confidence`, the bound for whole canvases. Without that
        condition, one answer in forty of our own small model came out worse.
        """
        assert after.accepted_C is not None
        token_C = after.result_C
        sure_C = after.accepted_C & (after.history[-1].entropy_C < self.settings.confidence)
        steady_C = steady_steps(before.tokens_C, before.steady_C, after.tokens_C, token_C, sure_C)
        newly_C = newly_settled(after.pin_C == FREE, steady_C, self.settings.settle)
        return replace(
            after,
            pin_C=torch.where(newly_C, token_C, after.pin_C),
            steady_C=steady_C,
            settled_C=newly_C if before.settled_C is None else before.settled_C | newly_C,
        )

    # --- the end ------------------------------------------------------------------------------------------------

    def _has_converged(self, canvas: Canvas) -> bool:
        """Return whether the stopping rule ends the canvas, or none of its positions is left to judge."""
        judged_C = self._judged(canvas)
        if not judged_C.any():
            return True
        stopping = stopping_of(self.settings)
        return bool(stopping(_last(canvas.history, 1 + stopping.memory), judged_C, self.settings))

    def _judged(self, canvas: Canvas) -> Tensor:
        """Return the positions that the stopping rule considers."""
        judged_C = canvas.pin_C == FREE
        if canvas.settled_C is not None:  # unlike the caller's pins, settled positions count
            judged_C = judged_C | canvas.settled_C
        if self.settings.eos_settles:
            judged_C = judged_C & ~after_first(canvas.result_C, self.eos_E)
        return judged_C

    def reason(self, converged: bool, step: int) -> str | None:
        """Return why a canvas is done after this step, or None if it is not."""
        if converged:
            return "converged"
        return "steps" if step == self.settings.steps else None

    # --- what sampler and stopping rule read --------------------------------------------------------------------

    @cached_property
    def needs(self) -> frozenset[Need]:
        """The fields of a prediction that they read in addition to the usual ones."""
        return sampler_of(self.settings).needs | stopping_of(self.settings).needs

    @cached_property
    def memory(self) -> int:
        """The number of earlier predictions that they read."""
        return max(sampler_of(self.settings).memory, stopping_of(self.settings).memory)

    @cached_property
    def eos_E(self) -> Tensor:
        return torch.tensor(sorted(self.eos), device=self.device)


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


def after_first(tokens_C: Tensor, eos_E: Tensor) -> Tensor:
    """Return the positions after the first end-of-text token."""
    is_eos_C = (tokens_C[..., None] == eos_E).any(-1)
    return is_eos_C.cumsum(-1) - is_eos_C.long() > 0
