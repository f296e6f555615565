"""Captured passes over texts and canvases, of few sizes that serve every mixture of requests.

A pass has a part for texts and a part for canvases, each of a fixed number of tokens. The texts lie side by side in the
first part and the canvases in the second, with padding after them: texts of any number and length, and canvases of any
number and length or a number of whole ones. Lengths, rows, adapters and settings are data (`canvases.py`), so requests
that join or leave change no size. Kernels compute each token alone: padding changes no bits.

  texts alone        prompts
  canvases alone     denoising steps
  both               steps beside a short text: a committed canvas, or a piece of a prompt

T tokens of all canvases, H hidden.
"""

from collections.abc import Sequence
from functools import partial

import torch

from gesso.backends.base import Denoising, Piece, Replayed, Step, Work
from gesso.backends.cuda.canvases import Places, Slots, takes_step
from gesso.backends.cuda.captured import Captured
from gesso.backends.cuda.families import launching
from gesso.backends.cuda.kernels.segments import Segment
from gesso.backends.cuda.network import note, segments_of
from gesso.backends.cuda.pass_sizes import Expected, PassSize
from gesso.backends.cuda.passes import TEXTS, Passes, denoising, scored, texts_of
from gesso.diffusion.hash import send
from gesso.diffusion.prediction import Prediction
from gesso.model.cache import KVCache


def needed_by(work: Sequence[Work], expected: Expected) -> PassSize | None:
    """Return the sizes of a pass, or None if no packed pass can have this work."""
    pieces = [piece for item in work for piece in item.pieces]
    texts = [length for length, kind in pieces if kind in TEXTS]
    canvases = [length for length, kind in pieces if kind == "canvas"]
    if (
        any(kind not in (*TEXTS, "canvas") for _, kind in pieces)
        or max(texts, default=0) > expected.longest_text
        or max(canvases, default=0) > expected.canvas
        or len(texts) > expected.texts
        or len(canvases) > expected.batch
    ):
        return None
    are_whole = all(length == expected.canvas for length in canvases)
    is_constrained = any(request.is_constrained for request in denoising(work))
    return PassSize(sum(canvases), sum(texts), any_canvases=bool(canvases) and (is_constrained or not are_whole))


class PackedPass(Captured):
    """The tensors and the captured operations of the passes of one size."""

    def __init__(self, backend: Passes, size: PassSize, slots: Slots, expected: Expected, cache: KVCache) -> None:
        device = backend.model.device
        super().__init__(device)
        if not cache.lengths:
            cache.add_row(0)  # segments without tokens name a row, too
        self.backend = backend
        self.size = size
        self.slots = slots
        self.text_slots = expected.texts
        self.text_S = torch.zeros(size.texts, dtype=torch.long, device=device)
        self.places = Places(size.canvases, slots.count, slots.length, device)
        self.lengths = [size.canvases]  # of the canvases and of the padding
        parts = [length for length in (size.texts, size.canvases) if length]
        longest = max(min(size.texts, expected.longest_text), min(size.canvases, slots.length))
        self.plan = backend.plan(self._segments((), cache), cache, parts, longest)

    def run(self, work: Sequence[Work], cache: KVCache) -> Replayed:
        """Run the pass with this work."""
        segments = self._segments(work, cache)
        self.plan.move(segments, cache)
        if self.size.texts:
            tokens = texts_of(work)
            self.text_S[: len(tokens)].copy_(send(torch.tensor(tokens), self.device))
        placed = self._place(denoising(work)) if self.size.canvases else []
        self.replay()
        note(segments, cache)
        hidden_states = scored(work, self.hidden[0]) if self.size.texts else []
        return Replayed(partial(self._steps, placed), hidden_states)

    def dry_run(self) -> None:
        """Run the pass without work."""
        self._pass()
        self.slots.clear()

    def _place(self, requests: Sequence[Denoising]) -> list[tuple[int, Denoising]]:
        lengths = [len(request.canvas.tokens_C) for request in requests]
        slots = self.slots.place(requests)
        self.places.fill(tuple(zip(slots, lengths, strict=True)))
        # On a GPU the kernels do not read them. The plain operations run segment by segment.
        padding = self.size.canvases - sum(lengths)
        self.lengths[:] = [*lengths, padding] if padding else lengths
        return list(zip(slots, requests, strict=True))

    def _segments(self, work: Sequence[Work], cache: KVCache) -> list[Segment]:
        """Return the segments of texts and canvases, each kind followed by unused segments and padding."""
        pieces = [
            (item.row, length, kind != "canvas", self.backend.slot(item.adapter))
            for item in work
            for length, kind in item.pieces
        ]
        used = segments_of(pieces, cache)
        texts = [segment for segment in used if segment.causal]
        canvases = [segment for segment in used if not segment.causal]
        segments: list[Segment] = []
        if self.size.texts:
            segments += _filled(texts, self.text_slots, self.size.texts, True, cache)
        if self.size.any_canvases:
            segments += _filled(canvases, self.slots.count, self.size.canvases, False, cache)
        elif self.size.canvases:
            count = self.size.canvases // self.slots.length
            segments += canvases or [Segment(0, 0, self.slots.length, causal=False)] * count
        return segments

    def _steps(self, placed: Sequence[tuple[int, Denoising]]) -> list[Step]:
        """Return the outcome for each canvas."""
        if not placed:
            return []
        lengths = [len(request.canvas.tokens_C) for _, request in placed]
        count = sum(lengths)
        taking = [(slot, request) for slot, request in placed if takes_step(request)]
        canvases = self.slots.advanced(taking, self.after)
        after = {slot: canvas for (slot, _), canvas in zip(taking, canvases, strict=True)}
        tensors = self.prediction.tensors()
        predictions = Prediction(**{name: tensor[:count] for name, tensor in tensors.items()}).split(lengths)
        hidden = self.hidden[-1][:count].split(lengths)
        steps = []
        for (slot, request), prediction, hidden_CH in zip(placed, predictions, hidden, strict=True):
            canvas = after.get(slot)
            needs_prediction = not request.needs_all_logits and (canvas is None or request.is_constrained)
            step = Step(
                prediction=prediction.clone() if needs_prediction else None,
                after=canvas,
                hidden_CH=hidden_CH.clone() if request.is_constrained else hidden_CH,
            )
            steps.append(step)
        return steps

    # --- the captured operations ----------------------------------------------------------------------------------

    def _pass(self) -> None:
        pieces = [Piece(-1, self.text_S, causal=True)] if self.size.texts else []
        if not self.size.canvases:
            self.hidden = self.backend.flow(self.plan, pieces)
            return
        with launching("rows"):
            inputs = self.slots.prepare(self.places)
        pieces.append(Piece(-1, inputs.tokens_T, causal=False, soft_SH=inputs.soft_TH))
        self.hidden = self.backend.flow(self.plan, pieces)
        self.prediction = self.backend.predict(
            self.hidden[-1],
            inputs.temperature_T,
            inputs.key_T2,
            self.lengths,
            soft=True,
            likely=self.size.any_canvases,
        )
        with launching("rows"):
            self.after = self.slots.step(self.prediction, self.places, self.backend.model)


def _filled(used: Sequence[Segment], count: int, tokens: int, causal: bool, cache: KVCache) -> list[Segment]:
    """Return these segments, empty ones up to `count`, and one for the padding."""
    last = used[-1] if used else Segment(0, cache.lengths[0], 0, causal)
    start = last.start + last.length if causal else last.start
    empty = Segment(last.row, start, 0, causal)
    padding = Segment(last.row, start, 0, causal, room=tokens - sum(segment.length for segment in used))
    return [*used, *[empty] * (count - len(used)), padding]
