"""The canvases of a captured pass: several that advance together, in tensors that keep their addresses.

The canvas of a request is immutable, so that any can be kept and resumed. These tensors change at every step: a
request's canvas is copied in unless it is the one that came out last, and copied out after the step.

B canvases, C canvas, T = B C, H hidden.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gesso.backends.base import Denoising
from gesso.diffusion.canvas import FREE, Canvas, Process
from gesso.diffusion.noise import HashSource
from gesso.diffusion.prediction import Prediction
from gesso.model.transformer import DiffusionGemma
from gesso.settings import Diffusion


class Canvases:
    def __init__(
        self,
        settings: Diffusion,
        source: HashSource,
        vocab_size: int,
        eos: frozenset[int],
        tokens_BC: Tensor,
        soft_BCH: Tensor,
    ) -> None:
        count, device = len(tokens_BC), tokens_BC.device
        self.seed_B = torch.zeros(count, dtype=torch.long, device=device)
        self.process = Process(
            settings=settings,
            source=source,
            seed=self.seed_B,
            vocab_size=vocab_size,
            eos=eos,
            device=device,
        )
        self.process.eos_E  # noqa: B018 - compute it now: a copy from the host cannot be captured
        earlier = [torch.zeros_like(tokens_BC) for _ in range(settings.stability)]
        self.canvas = Canvas(
            index=torch.zeros_like(self.seed_B),
            attempt=0,
            tokens_C=tokens_BC,
            pin_C=torch.full_like(tokens_BC, FREE),
            step=torch.zeros(
                count, dtype=torch.float64, device=device
            ),  # temperatures are computed in float64, as on the host
            soft_CH=soft_BCH,
            history=tuple(Prediction(argmax_BC, argmax_BC, argmax_BC, argmax_BC) for argmax_BC in earlier),
            steady_C=torch.zeros_like(tokens_BC),
            settled_C=torch.zeros_like(tokens_BC, dtype=torch.bool),
        )
        self.held: list[Canvas | None] = [None] * count  # the canvases these tensors hold

    def load(self, requests: Sequence[Denoising]) -> None:
        for i, running in enumerate(requests):
            if self.held[i] is not running.canvas:
                self._put(i, running)
        self.held = [None] * len(requests)  # until a step has succeeded

    def _put(self, i: int, running: Denoising) -> None:
        ours, canvas = self.canvas, running.canvas
        seed = running.process.seed
        assert isinstance(seed, int)
        self.seed_B[i] = seed - (1 << 64) if seed >= 1 << 63 else seed
        ours.index[i] = canvas.index + (canvas.attempt << 24)
        ours.step[i] = canvas.step
        for name in ("tokens_C", "pin_C", "soft_CH", "steady_C", "settled_C"):
            target, given = getattr(ours, name)[i], getattr(canvas, name)
            target.zero_() if given is None else target.copy_(given)
        for back, past in enumerate(reversed(ours.history), start=1):
            if back <= len(canvas.history):
                past.argmax_C[i] = canvas.history[-back].argmax_C
            else:
                past.argmax_C[i] = FREE  # no such step yet: equal to no token

    # --- on the device --------------------------------------------------------------------------------------------

    def prepare(self, temperature_T: Tensor, key_T2: Tensor) -> None:
        """Write the temperatures and keys of the step."""
        count, length = self.canvas.tokens_C.shape
        temperature_B = self.process.temperature(self.canvas)
        temperature_T.view(count, length).copy_(temperature_B[:, None].expand(-1, length))
        keys_BC2 = self.process.draws(self.canvas).keys(length)
        assert keys_BC2 is not None
        key_T2.view(count, length, 2).copy_(keys_BC2)

    def step(self, prediction: Prediction, model: DiffusionGemma) -> None:
        ours = self.canvas
        shape = ours.tokens_C.shape
        names = ("candidate_C", "argmax_C", "confidence_C", "entropy_C")
        batched = Prediction(**{name: getattr(prediction, name).view(shape) for name in names})
        soft_BCH = ours.soft_CH  # unchanged if there is no self-conditioning
        if prediction.soft_CH is not None:
            soft_BCH = model.conditioning(ours.pin_C.flatten(), prediction.soft_CH).view(*shape, -1)
        after = self.process.evolve(ours, replace(batched, soft_CH=soft_BCH))
        now = after.history[-1]
        assert after.soft_CH is not None and after.steady_C is not None and after.settled_C is not None
        assert after.accepted_C is not None
        self.standing_B = self.process.standing(after)
        self.ints = torch.stack([after.tokens_C, now.candidate_C, now.argmax_C, after.pin_C, after.steady_C])
        self.floats = torch.stack([now.confidence_C, now.entropy_C])
        self.flags = torch.stack([after.accepted_C, after.settled_C])
        self.soft_BCH = after.soft_CH
        for name in ("tokens_C", "pin_C", "soft_CH", "steady_C", "settled_C", "step"):
            getattr(ours, name).copy_(getattr(after, name))
        for past, newer in zip(ours.history, after.history[1:], strict=True):
            past.argmax_C.copy_(newer.argmax_C)

    # --- back on the host -----------------------------------------------------------------------------------------

    def after(self, requests: Sequence[Denoising]) -> list[Canvas]:
        """Return the canvas of each request after the step."""
        ints, floats, flags = self.ints.clone(), self.floats.clone(), self.flags.clone()
        soft_BCH = self.soft_BCH.clone()
        settles = self.process.settings.settle > 0
        found = []
        for i, (running, standing) in enumerate(zip(requests, self._standing(requests), strict=True)):
            tokens_C, candidate_C, argmax_C, pin_C, steady_C = ints[:, i].unbind()
            confidence_C, entropy_C = floats[:, i].unbind()
            accepted_C, settled_C = flags[:, i].unbind()
            before = running.canvas
            canvas = replace(
                before,
                tokens_C=tokens_C,
                pin_C=pin_C,
                step=before.step + 1,
                soft_CH=soft_BCH[i],
                history=(*before.history, Prediction(candidate_C, argmax_C, confidence_C, entropy_C)),
                accepted_C=accepted_C,
                steady_C=steady_C if settles else None,
                settled_C=settled_C if settles else None,
                reason=self.process.reason(standing, before.step + 1),
            )
            found.append(canvas)
        self.held = list(found)
        return found

    def _standing(self, requests: Sequence[Denoising]) -> list[bool]:
        """Return whether each canvas is done. Reading it waits for the step.

        With a fixed number of steps there is no need to wait, unless all positions may be pinned; the GPU then has the
        next step queued when this one ends.
        """
        if self.process.settings.stopping == "fixed" and not any(running.has_pins for running in requests):
            return [False] * len(requests)
        standing: list[bool] = self.standing_B.tolist()
        return standing
