"""The canvases of a captured pass: several that advance together, in tensors that keep their addresses.

The canvas of a request is immutable, so that any of them can be kept and resumed. These tensors change at every step. A
request's canvas is copied in, unless the tensors already hold it, and copied out after the step.

B canvases, C canvas, T = B C, H hidden, M earlier steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gesso.backends.base import Denoising
from gesso.backends.cuda.kernels import embed
from gesso.backends.cuda.kernels.advance import LONGEST, StepKernels, advances
from gesso.backends.cuda.noise import KernelSource
from gesso.diffusion.canvas import FREE, Canvas, Process, State
from gesso.diffusion.prediction import Prediction
from gesso.diffusion.schedule import temperature
from gesso.model.transformer import DiffusionGemma


def _earlier(past_MBC: Tensor) -> tuple[Prediction, ...]:
    """Return views of earlier predictions. Their argmax, which the built-in rules read, stands for the other fields."""
    return tuple(Prediction(past_BC, past_BC, past_BC, past_BC) for past_BC in past_MBC)


@dataclass(frozen=True)
class Advanced:
    """The canvases after a step, as tensors of a captured pass."""

    ints: Tensor  # [5, B, C]: tokens, candidates, most likely tokens, pins, steady steps
    floats: Tensor  # [2, B, C]: confidences, entropies
    flags: Tensor  # [2, B, C]: accepted, settled
    soft_BCH: Tensor
    converged_B: Tensor


def _fill(target_C: Tensor, value_C: Tensor | None, rest: float) -> None:
    """Copy a value, which may be shorter, and fill the rest."""
    if value_C is not None:
        target_C[: len(value_C)].copy_(value_C)
    if value_C is None or len(value_C) < len(target_C):
        target_C[0 if value_C is None else len(value_C) :].fill_(rest)


class Canvases:
    """The tensors of several canvases under the same settings."""

    def __init__(self, process: Process, tokens_BC: Tensor, soft_BCH: Tensor) -> None:
        """Make the tensors of canvases of a process whose seed is a tensor [B]."""
        assert isinstance(process.seed, Tensor)
        self.process, self.seed_B = process, process.seed
        count, device = len(tokens_BC), tokens_BC.device
        self.process.eos_E  # noqa: B018 - compute it now: a copy from the host cannot be captured
        # One tensor for all earlier steps: it moves by one step in one copy.
        self.past_MBC = tokens_BC.new_zeros(process.memory, *tokens_BC.shape)
        self.canvas = State(
            index=torch.zeros_like(self.seed_B),
            attempt=0,
            tokens_C=tokens_BC,
            pin_C=torch.full_like(tokens_BC, FREE),
            # float64, because the host computes temperatures in it too
            step=torch.zeros(count, dtype=torch.float64, device=device),
            soft_CH=soft_BCH,
            history=_earlier(self.past_MBC),
            accepted_C=torch.zeros_like(tokens_BC, dtype=torch.bool),
            steady_C=torch.zeros_like(tokens_BC),
            settled_C=torch.zeros_like(tokens_BC, dtype=torch.bool),
        )
        # The canvases that these tensors hold. A draft may be resumed by a request with another seed.
        self.held: list[tuple[Canvas, Process] | None] = [None] * count
        self.kernels = None
        uniform = type(process) is Process  # in `slots.py` settings are tensors
        fits = uniform and isinstance(process.source, KernelSource) and tokens_BC.shape[1] <= LONGEST
        if fits and advances(process.settings):
            self.kernels = StepKernels(process.settings, process.vocab_size, tokens_BC)

    def load(self, requests: Sequence[Denoising]) -> None:
        """Copy the canvases of these requests into the tensors."""
        for i, request in enumerate(requests):
            if not holds(self.held[i], request):
                self._put(i, request)
        self.held = [None] * len(requests)  # until the step has succeeded

    def _put(self, i: int, request: Denoising) -> None:
        batch, canvas = self.canvas, request.canvas
        seed = request.process.seed
        assert isinstance(seed, int)
        self.seed_B[i] = seed - (1 << 64) if seed >= 1 << 63 else seed
        batch.index[i] = canvas.index + (canvas.attempt << 24)
        batch.step[i] = canvas.step
        for name in ("tokens_C", "pin_C", "soft_CH", "accepted_C", "steady_C", "settled_C"):
            _fill(getattr(batch, name)[i], getattr(canvas, name), 0)
        for back in range(1, len(self.past_MBC) + 1):
            argmax_C = canvas.history[-back].argmax_C if back <= len(canvas.history) else None
            _fill(self.past_MBC[-back, i], argmax_C, FREE)  # without such a step: tokens that equal none

    # --- on the device --------------------------------------------------------------------------------------------

    def prepare(self, temperature_T: Tensor, key_T2: Tensor) -> None:
        """Write the temperatures and keys of the step."""
        if self.kernels:
            self.kernels.prepare(self.seed_B, self.canvas.index, self.canvas.step, temperature_T, key_T2)
            return
        count, length = self.canvas.tokens_C.shape
        settings = self.process.settings
        temperature_B, keys_BC2 = temperature(settings, settings.steps - self.canvas.step), self.keys()
        temperature_T.view(count, length).copy_(temperature_B[:, None].expand(-1, length))
        key_T2.view(count, length, 2).copy_(keys_BC2)

    def keys(self) -> Tensor:
        """Return the hash keys [B, C, 2] of the step."""
        keys_BC2 = self.process.draws(self.canvas).keys(self.canvas.tokens_C.shape[1])
        assert keys_BC2 is not None
        return keys_BC2

    def step(self, prediction: Prediction, model: DiffusionGemma) -> Advanced:
        """Advance all canvases by one denoising step."""
        if self.kernels:
            return self._step_by_kernels(self.kernels, prediction, model)
        batch = self.canvas
        shape = batch.tokens_C.shape
        given = replace(prediction, soft_CH=None).tensors()
        batched = Prediction(**{name: tensor.view(*shape, *tensor.shape[1:]) for name, tensor in given.items()})
        soft_BCH = batch.soft_CH  # unchanged without self-conditioning
        if prediction.soft_CH is not None:
            soft_BCH = model.conditioning(batch.pin_C.flatten(), prediction.soft_CH).view(*shape, -1)
        after = self.process.evolve(batch, replace(batched, soft_CH=soft_BCH))
        now = after.history[-1]
        assert after.soft_CH is not None and after.steady_C is not None and after.settled_C is not None
        assert after.accepted_C is not None
        advanced = Advanced(
            ints=torch.stack([after.tokens_C, now.candidate_C, now.argmax_C, after.pin_C, after.steady_C]),
            floats=torch.stack([now.confidence_C, now.entropy_C]),
            flags=torch.stack([after.accepted_C, after.settled_C]),
            soft_BCH=after.soft_CH,
            converged_B=self.process.converged(after),
        )
        for name in ("tokens_C", "pin_C", "soft_CH", "accepted_C", "steady_C", "settled_C", "step"):
            getattr(batch, name).copy_(getattr(after, name))
        if len(self.past_MBC):
            self.past_MBC.copy_(torch.cat([self.past_MBC[1:], now.argmax_C[None]]))
        return advanced

    def _step_by_kernels(self, kernels: StepKernels, prediction: Prediction, model: DiffusionGemma) -> Advanced:
        """Advance all canvases by one denoising step with the default sampler."""
        batch = self.canvas
        assert batch.soft_CH is not None and batch.accepted_C is not None
        if prediction.soft_CH is not None:
            table = model.decoder.embed_tokens.weight
            pin_T, soft_TH = batch.pin_C.flatten(), batch.soft_CH.flatten(0, 1)
            embed.with_pins(pin_T, prediction.soft_CH, table, model.embed_scale, soft_TH)
        past_MBC = self.past_MBC if len(self.past_MBC) else None
        ints, floats, flags, converged_B = kernels.advance(
            prediction, batch.pin_C, batch.tokens_C, batch.accepted_C, batch.step, past_MBC
        )
        return Advanced(ints, floats, flags, batch.soft_CH, converged_B)

    # --- back on the host -----------------------------------------------------------------------------------------

    def after(self, requests: Sequence[Denoising], advanced: Advanced) -> list[Canvas]:
        """Return the canvas of each request after the step."""
        copies = replace(
            advanced,
            ints=advanced.ints.clone(),
            floats=advanced.floats.clone(),
            flags=advanced.flags.clone(),
            soft_BCH=advanced.soft_BCH.clone(),
        )
        flags = converged(requests, advanced)[: len(requests)]
        after = [
            canvas_after(request, i, copies, is_over)
            for i, (request, is_over) in enumerate(zip(requests, flags, strict=True))
        ]
        self.held = [(canvas, request.process) for canvas, request in zip(after, requests, strict=True)]
        return after


def holds(held: tuple[Canvas, Process] | None, request: Denoising) -> bool:
    return held is not None and held[0] is request.canvas and held[1] is request.process


def canvas_after(request: Denoising, i: int, advanced: Advanced, is_over: bool) -> Canvas:
    """Return the canvas of a request, which is the i-th one."""
    before, process = request.canvas, request.process
    part, settles = slice(len(before.tokens_C)), process.settings.settle > 0
    tokens_C, candidate_C, argmax_C, pin_C, steady_C = advanced.ints[:, i, part].unbind()
    confidence_C, entropy_C = advanced.floats[:, i, part].unbind()
    accepted_C, settled_C = advanced.flags[:, i, part].unbind()
    prediction = Prediction(
        candidate_C,
        argmax_C,
        confidence_C,
        entropy_C,
        remaining=process.settings.steps - before.step,
    )
    return replace(
        before,
        tokens_C=tokens_C,
        pin_C=pin_C,
        step=before.step + 1,
        soft_CH=advanced.soft_BCH[i, part],
        history=(*before.history, prediction),
        accepted_C=accepted_C,
        steady_C=steady_C if settles else None,
        settled_C=settled_C if settles else None,
        reason=process.reason(is_over, before.step + 1),
    )


def converged(requests: Sequence[Denoising], advanced: Advanced) -> list[bool]:
    """Return whether each canvas has converged. Reading this from the device waits for the step.

    With a fixed number of steps and no pins no canvas converges early, and there is nothing to wait for. The GPU then
    has the next step queued when this one ends.
    """
    if all(request.process.settings.stopping == "fixed" and not request.has_pins for request in requests):
        return [False] * len(advanced.converged_B)
    flags: list[bool] = advanced.converged_B.tolist()
    return flags
