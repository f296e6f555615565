"""The canvases of captured passes: several that advance together, in tensors that keep their addresses.

The canvas of a request is immutable, so that any of them can be kept and resumed. These tensors change at every step.
Each canvas has a slot. A request's canvas is copied in, unless a slot already holds it, and copied out after the step.

Settings are data, so requests with other temperatures, bounds or numbers of steps take the same captured step. A
request with settings that the kernels do not implement gets the prediction of the pass, and takes its step outside.

B slots, C longest canvas, P = B C places in them, T tokens of a pass, H hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gesso.backends.base import Denoising
from gesso.backends.cuda.kernels import advance as kernels
from gesso.backends.cuda.kernels import embed
from gesso.backends.cuda.kernels.advance import Advanced, CanvasTensors
from gesso.diffusion.canvas import FREE, Canvas, Process
from gesso.diffusion.hash import send
from gesso.diffusion.prediction import Prediction
from gesso.model.transformer import DiffusionGemma

PADDING = -1  # in place of a token's place


def takes_step(request: Denoising) -> bool:
    """Return whether the step of a captured pass is that of this request."""
    return kernels.implements(request.process, len(request.canvas.tokens_C))


class Places:
    """Where the tokens of a pass, T, are in the slots: at P = B C places. Tables that keep their addresses."""

    def __init__(self, tokens: int, slots: int, length: int, device: torch.device) -> None:
        self.length = length
        self.of_token_T = torch.full((tokens,), PADDING, device=device)
        self.token_P = torch.zeros(slots * length, dtype=torch.long, device=device)
        self.placed: tuple[tuple[int, int], ...] = ()  # slot and length of each canvas

    def fill(self, placed: tuple[tuple[int, int], ...]) -> None:
        """Fill the tables for canvases in these slots, of these lengths. Places without a token get the first one."""
        if placed == self.placed:
            return
        of_token_T = torch.full((len(self.of_token_T),), PADDING)
        token_P = torch.zeros(len(self.token_P), dtype=torch.long)
        first = 0
        for slot, length in placed:
            place = slot * self.length
            of_token_T[first : first + length] = torch.arange(place, place + length)
            token_P[place : place + length] = torch.arange(first, first + length)
            first += length
        self.of_token_T.copy_(send(of_token_T, self.of_token_T.device))
        self.token_P.copy_(send(token_P, self.token_P.device))
        self.placed = placed


@dataclass(frozen=True)
class Inputs:
    """The tokens of the canvases of a pass, padding included, and what their prediction depends on."""

    tokens_T: Tensor
    soft_TH: Tensor
    temperature_T: Tensor
    key_T2: Tensor


class Slots:
    """The tensors of canvases with different lengths and settings. Each has a slot, and keeps it."""

    def __init__(self, count: int, length: int, model: DiffusionGemma) -> None:
        device, hidden = model.device, model.config.hidden_size
        self.count, self.length = count, length
        self.vocab_size = model.config.vocab_size
        self.canvases = CanvasTensors(count, length, device)
        self.soft_BCH = torch.zeros(count, length, hidden, dtype=model.dtype, device=device)
        self.contents: list[tuple[Canvas, Process] | None] = [None] * count

    def clear(self) -> None:
        """Empty all slots, so that nothing in them is out of range."""
        self.contents = [None] * self.count
        for tensor in (self.canvases.tokens_BC, self.canvases.pin_BC, self.soft_BCH):
            tensor.zero_()

    def place(self, requests: Sequence[Denoising]) -> list[int]:
        """Return a slot for each request. Copy its canvas there, unless a slot already holds it."""
        unclaimed = dict(enumerate(self.contents))
        kept: dict[int, int] = {}  # the slot by the number of a request whose canvas is already in it
        for number, request in enumerate(requests):
            slot = next((slot for slot, content in unclaimed.items() if _is_of(request, content)), None)
            if slot is not None:
                kept[number] = slot
                del unclaimed[slot]
        free = iter(unclaimed)
        slots = []
        for number, request in enumerate(requests):
            slot = kept.get(number)
            if slot is None:
                slot = next(free)
                self._put(slot, request)
            slots.append(slot)
        self.contents = [None] * self.count  # until the step has succeeded
        return slots

    def _put(self, slot: int, request: Denoising) -> None:
        tensors = self.canvases
        canvas = request.canvas
        process = request.process
        seed = process.seed - (1 << 64) if process.seed >= 1 << 63 else process.seed
        device = self.soft_BCH.device
        tensors.numbers_KB[:, slot] = send(torch.tensor(kernels.numbers(process), dtype=torch.float64), device)
        tensors.eos_BE[slot] = send(torch.tensor(kernels.end_tokens(process)), device)
        tensors.seed_B[slot] = seed
        tensors.index_B[slot] = canvas.index + (canvas.attempt << 24)
        tensors.step_B[slot] = canvas.step
        _fill(tensors.tokens_BC[slot], canvas.tokens_C, 0)
        _fill(tensors.pin_BC[slot], canvas.pin_C, 0)  # what follows the canvas is pinned
        _fill(tensors.steady_BC[slot], canvas.steady_C, 0)
        _fill(tensors.settled_BC[slot], canvas.settled_C, 0)
        _fill(self.soft_BCH[slot], canvas.soft_CH, 0)
        memory = len(tensors.past_MBC)
        for back in range(1, memory + 1):
            argmax_C = canvas.history[-back].argmax_C if back <= len(canvas.history) else None
            _fill(tensors.past_MBC[memory - back, slot], argmax_C, FREE)  # no such step: tokens that equal none

    # --- the captured operations ----------------------------------------------------------------------------------

    def prepare(self, places: Places) -> Inputs:
        """Return the tokens of a pass, with what their prediction depends on."""
        canvases = self.canvases
        kernels.prepare(canvases, self.vocab_size)
        place_T = places.of_token_T.clamp(min=0)
        return Inputs(
            tokens_T=canvases.tokens_BC.flatten()[place_T],
            soft_TH=self.soft_BCH.flatten(0, 1)[place_T],
            temperature_T=canvases.temperature_BC.flatten()[place_T],
            key_T2=canvases.key_BC2.flatten(0, 1)[place_T],
        )

    def step(self, prediction: Prediction, places: Places, model: DiffusionGemma) -> Advanced:
        """Advance all canvases by one denoising step, from the prediction for the tokens of a pass."""
        assert prediction.soft_CH is not None
        embed.with_pins(
            places.of_token_T,
            self.canvases.pin_BC.flatten(),
            prediction.soft_CH,
            model.decoder.embed_tokens.weight,
            model.embed_scale,
            self.soft_BCH.flatten(0, 1),
        )
        in_slots = Prediction(
            prediction.candidate_C[places.token_P],
            prediction.argmax_C[places.token_P],
            prediction.confidence_C[places.token_P],
            prediction.entropy_C[places.token_P],
        )
        after = Advanced.empty(self.canvases.tokens_BC)
        kernels.advance(self.canvases, in_slots, after)
        return after

    # --- back on the host -----------------------------------------------------------------------------------------

    def advanced(self, placed: Sequence[tuple[int, Denoising]], after: Advanced) -> list[Canvas]:
        """Return the canvases after the step of requests in these slots."""
        if not placed:
            return []
        has_converged = _converged([request for _, request in placed], after)
        copies = replace(
            after,
            ints_5BC=after.ints_5BC.clone(),
            floats_2BC=after.floats_2BC.clone(),
            flags_2BC=after.flags_2BC.clone(),
        )
        canvases = []
        for slot, request in placed:
            length = len(request.canvas.tokens_C)
            canvas = _canvas_after(request, slot, copies, self.soft_BCH[slot, :length].clone(), has_converged[slot])
            canvases.append(canvas)
            self.contents[slot] = canvas, request.process
        return canvases


def _is_of(request: Denoising, content: tuple[Canvas, Process] | None) -> bool:
    """Return whether a slot holds the canvas of a request. A draft may be resumed by one with another seed."""
    return content is not None and content[0] is request.canvas and content[1] is request.process


def _fill(target_C: Tensor, value_C: Tensor | None, rest: float) -> None:
    """Copy a value, which may be shorter, and fill the rest."""
    length = 0 if value_C is None else len(value_C)
    if value_C is not None:
        target_C[:length].copy_(value_C)
    if length < len(target_C):
        target_C[length:].fill_(rest)


def _canvas_after(request: Denoising, slot: int, after: Advanced, soft_CH: Tensor, has_converged: bool) -> Canvas:
    """Return the canvas of a request after the step."""
    before, process = request.canvas, request.process
    part = slice(len(before.tokens_C))
    tokens_C, candidate_C, argmax_C, pin_C, steady_C = after.ints_5BC[:, slot, part].unbind()
    confidence_C, entropy_C = after.floats_2BC[:, slot, part].unbind()
    accepted_C, settled_C = after.flags_2BC[:, slot, part].unbind()
    prediction = Prediction(
        candidate_C,
        argmax_C,
        confidence_C,
        entropy_C,
        remaining=process.settings.steps - before.step,
    )
    settles = process.settings.settle > 0
    return replace(
        before,
        tokens_C=tokens_C,
        pin_C=pin_C,
        step=before.step + 1,
        soft_CH=soft_CH,
        history=(*before.history, prediction),
        accepted_C=accepted_C,
        steady_C=steady_C if settles else None,
        settled_C=settled_C if settles else None,
        reason=process.reason(has_converged, before.step + 1),
    )


def _converged(requests: Sequence[Denoising], after: Advanced) -> list[bool]:
    """Return whether the canvas in each slot has converged. Reading this from the device waits for the step.

    With a fixed number of steps and no pins no canvas converges early, and there is nothing to wait for. The GPU then
    has the next step queued when this one ends.
    """
    if all(request.process.settings.stopping == "fixed" and not request.has_pins for request in requests):
        return [False] * len(after.converged_B)
    flags: list[bool] = after.converged_B.tolist()
    return flags
