"""Captured passes that write token by token, with the next token or a draft to verify for each request.

The shape of a pass is fixed: the lengths and kinds of its pieces. Tokens, temperatures and keys come from the host,
which takes the steps.

T tokens to predict from, H hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gesso.backends.base import PREDICTING, Denoising, Kind, Piece, Replayed, Step, Work
from gesso.backends.cuda.captured import Captured
from gesso.backends.cuda.kernels.segments import Segment
from gesso.backends.cuda.network import joined, note, segments_of
from gesso.backends.cuda.passes import TEXTS, Passes, denoising
from gesso.diffusion.hash import send
from gesso.model.cache import KVCache


@dataclass(frozen=True)
class Shape:
    """The properties of a pass that its graph fixes."""

    pieces: tuple[tuple[int, Kind], ...]
    lengths: tuple[int, ...]  # of the predictions, by request
    likely: bool  # whether a constraint may need the most likely tokens


def shape_of(work: Sequence[Work]) -> Shape | None:
    """Return the shape of a pass, or None if it does more than write token by token."""
    pieces = tuple(piece for item in work for piece in item.pieces)
    requests = denoising(work)
    if any(kind in (*TEXTS, "image") for _, kind in pieces):
        return None
    if any(request.needs_all_logits or not request.process.settings.by_token for request in requests):
        return None
    lengths = tuple(len(request.canvas.tokens_C) for request in requests)
    return Shape(pieces, lengths, likely=any(request.is_constrained for request in requests))


class CapturedTokens(Captured):
    """The tensors and the captured operations of passes of one shape."""

    def __init__(self, backend: Passes, shape: Shape, work: Sequence[Work], cache: KVCache) -> None:
        super().__init__(backend.model.device)
        self.backend = backend
        self.shape = shape
        self.has_run = False  # a pass runs once before it is captured
        tokens = sum(shape.lengths)
        self.pieces = [torch.zeros(length, dtype=torch.long, device=self.device) for length, _ in shape.pieces]
        self.temperature_T = torch.ones(tokens, device=self.device)
        self.key_T2 = torch.zeros(tokens, 2, dtype=torch.int32, device=self.device)
        self.plan = backend.plan(self._segments(work, cache), cache, [length for length, _ in shape.pieces])

    def run(self, work: Sequence[Work], cache: KVCache) -> Replayed:
        """Run the pass with this work."""
        segments = self._segments(work, cache)
        self.plan.move(segments, cache)
        requests = denoising(work)
        for target_S, source_S in zip(self.pieces, self._tokens(work), strict=True):
            target_S.copy_(source_S)
        parts = zip(self.temperature_T.split(self.shape.lengths), self.key_T2.split(self.shape.lengths), strict=True)
        for request, (temperature_C, key_C2) in zip(requests, parts, strict=True):
            canvas, process = request.canvas, request.process
            keys_C2 = process.draws(canvas).keys(len(key_C2))
            assert keys_C2 is not None, "captured passes need the default source"
            temperature_C.fill_(process.temperature(canvas))
            key_C2.copy_(keys_C2)
        self.replay()
        self.has_run = True
        note(segments, cache)
        return Replayed(partial(self._steps, requests), [])

    def _segments(self, work: Sequence[Work], cache: KVCache) -> list[Segment]:
        pieces = [
            (item.row, length, kind != "canvas", self.backend.slot(item.adapter))
            for item in work
            for length, kind in item.pieces
        ]
        return segments_of(pieces, cache)

    def _tokens(self, work: Sequence[Work]) -> list[Tensor]:
        """Return the tokens of each piece: of the text, or of the canvas and the draft to verify."""
        tokens: list[Tensor] = []
        for item in work:
            lengths = [length for length, _ in item.pieces]
            if item.texts:
                tokens += [send(torch.tensor(text), self.device) for text in item.texts]
            elif item.denoising is not None:
                tokens += item.denoising.canvas.tokens_C.split(lengths)
        return tokens

    def _steps(self, requests: Sequence[Denoising]) -> list[Step]:
        lengths = self.shape.lengths
        predictions = self.prediction.clone().split(lengths)
        hidden = self.hidden_TH.split(lengths)
        return [
            Step(prediction, None, hidden_CH.clone() if request.is_constrained else hidden_CH)
            for request, prediction, hidden_CH in zip(requests, predictions, hidden, strict=True)
        ]

    # --- the captured operations ----------------------------------------------------------------------------------

    def _pass(self) -> None:
        kinds = [kind for _, kind in self.shape.pieces]
        pieces = [
            Piece(-1, tokens_S, causal=kind != "canvas") for tokens_S, kind in zip(self.pieces, kinds, strict=True)
        ]
        hidden = self.backend.flow(self.plan, pieces)
        self.hidden_TH = joined([part[PREDICTING[kind]] for part, kind in zip(hidden, kinds, strict=True)])
        self.prediction = self.backend.predict(
            self.hidden_TH,
            self.temperature_T,
            self.key_T2,
            self.shape.lengths,
            soft=False,  # drafts have no self-conditioning
            likely=self.shape.likely,
        )
