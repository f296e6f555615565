"""Captured passes: a pass, with the steps of its canvases, as one CUDA graph. A thousand launches become one.

A pass has a shape: the lengths and kinds of its pieces, and the settings under which its canvases advance. The first
pass of a shape runs operation by operation, the second is captured, and later ones are replayed. Everything else that
changes from pass to pass is in tensors that keep their addresses: tokens, positions, cache addresses, adapters, seeds,
steps.

The texts of a pass lie side by side, with padding after them. So passes with similar amounts of text share a shape.

On a CPU there are no graphs, and a `Graph` calls its operations one by one. Tests use that for comparison.

B canvases, C canvas, T tokens of all canvases, H hidden.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gesso.backends.base import PREDICTING, Denoising, Kind, Piece, Replayed, Step, Work
from gesso.backends.cuda.canvases import Canvases
from gesso.backends.cuda.captured import Captured
from gesso.backends.cuda.families import launching
from gesso.backends.cuda.kernels.segments import Segment
from gesso.backends.cuda.network import joined, note, segments_of
from gesso.backends.cuda.packed import Expected, PackedPass, PackedPasses
from gesso.backends.cuda.passes import TEXTS, Passes, denoising, has_images, scored, texts_of
from gesso.diffusion.canvas import Process
from gesso.diffusion.hash import send
from gesso.model.cache import KVCache
from gesso.rules import Rule
from gesso.settings import Diffusion

MAX_GRAPHS = 32
MAX_SEEN = 256  # shapes whose passes are counted
SLOTS = 8  # segments for texts; the last one is empty and has the padding
# A pass with texts and canvases gets a graph of its own if its shape recurs. Until then, its parts are replayed apart.
LATER = 8
HELD = ("canvas", "verified")  # pieces whose tokens are those of a canvas


@dataclass(frozen=True)
class Shape:
    """The properties of a pass that a captured graph fixes."""

    room: int  # tokens for all texts together, with padding; 0: each text is a piece
    pieces: tuple[tuple[int, Kind], ...]
    # of the predictions: canvases, with the text to verify if there is one; and the last tokens of texts of kind "next"
    lengths: tuple[int, ...]
    likely: bool  # whether a constraint may need the most likely tokens
    settings: Diffusion | None  # settings of all canvases; None: they advance outside of the graph
    eos: frozenset[int]


def shape_of(work: Sequence[Work], pads: bool = False) -> Shape | None:
    """Return the shape of a pass, or None if it cannot be captured: a request needs logits, the pass reads an image, or
    a text is scored that has to be a piece of its own.
    """
    canvases = denoising(work)
    if any(canvas.needs_all_logits for canvas in canvases) or has_images(work):
        return None
    pieces = [piece for item in work for piece in item.pieces]
    texts = [length for length, kind in pieces if kind in TEXTS]
    room = 0
    # A next token must be adjacent to the text before it.
    if pads and 0 < len(texts) < SLOTS and not any(item.pieces[-1][1] == "next" and item.texts[1:] for item in work):
        room = room_for(sum(texts))
        pieces = [piece for piece in pieces if piece[1] not in TEXTS]
    elif any(kind == "scored" for _, kind in pieces):
        return None
    lengths = tuple(len(canvas.canvas.tokens_C) for canvas in canvases)
    likely = any(canvas.is_constrained for canvas in canvases)
    settings: Diffusion | None = None
    eos: frozenset[int] = frozenset()
    same_settings = len({(canvas.process.settings, canvas.process.eos) for canvas in canvases}) == 1
    if same_settings and len(set(lengths)) == 1 and all(map(_advances_on_device, canvases)):
        settings = canvases[0].process.settings
        eos = canvases[0].process.eos
    return Shape(room=room, pieces=tuple(pieces), lengths=lengths, likely=likely, settings=settings, eos=eos)


def room_for(tokens: int) -> int:
    """Return a power of two or three quarters of one, and at least 16."""
    power = max(16, 1 << (tokens - 1).bit_length())
    return power * 3 // 4 if power >= 64 and tokens <= power * 3 // 4 else power


def _advances_on_device(request: Denoising) -> bool:
    """Return whether a captured pass can take the step of this canvas."""
    process = request.process
    settings = process.settings
    rules = [rule for rule in (settings.sampler, settings.stopping) if isinstance(rule, Rule)]
    remembers = any(rule.memory for rule in rules)  # a captured pass keeps the argmax of earlier predictions only
    return not (process.reads_host or remembers or settings.verified or settings.restricts_draws)


class Graphs:
    """The captured passes of a backend, by shape. The least recently used are dropped.

    A server has `packed` passes, which serve almost all of its work. A pass of another shape is captured only if the
    shape recurs.
    """

    def __init__(self, backend: Passes, expected: Expected | None = None) -> None:
        self.backend = backend
        self.can_capture = backend.can_capture
        self.pads = backend.can_pad
        self.seen: OrderedDict[Shape, int] = OrderedDict()  # number of passes of shapes that have no graph yet
        self.made: OrderedDict[Shape, Graph] = OrderedDict()
        self.packed: PackedPasses | None = None
        if expected is not None:
            self.expect(expected)
        self.pool: Any = None  # graphs share memory, because one runs at a time and its results are copied

    def expect(self, expected: Expected) -> None:
        if self.can_capture and self.backend.can_pack:
            self.packed = PackedPasses(self.backend, expected)

    def find(self, work: Sequence[Work], cache: KVCache) -> "Graph | PackedPass | None":
        """Return the graph for this work, or None if it cannot be captured or its shape is too rare."""
        if self.packed is not None and (packing := self.packed.find(work)) is not None:
            return self.packed.made.get(packing) or self.packed.capture(packing, cache, self._capture)
        shape = shape_of(work, self.pads) if self.can_capture else None
        if shape is None:
            return None
        if shape not in self.made:
            if (self.packed is not None or (shape.room and shape.pieces)) and self._passes(shape) <= LATER:
                return None
            self.made[shape] = Graph(self.backend, shape, work, cache)
            if len(self.made) > MAX_GRAPHS:
                self.made.popitem(last=False)
        self.made.move_to_end(shape)
        graph = self.made[shape]
        if graph.has_run and not graph.is_captured:
            self._capture(graph)
        return graph

    def capture_next(self, cache: KVCache) -> None:
        """Capture the expected pass that is needed most."""
        assert self.packed is not None
        self.packed.capture(self.packed.left[0], cache, self._capture)

    def _capture(self, graph: Captured) -> None:
        packed = [] if self.packed is None else self.packed.made.values()
        if graph.device.type == "cuda" and not any(each.is_captured for each in (*self.made.values(), *packed)):
            self.pool = torch.cuda.graph_pool_handle()  # a pool ends with the last graph that uses its memory
        graph.capture(self.pool)

    def _passes(self, shape: Shape) -> int:
        """Count a pass of this shape, and return how many there have been."""
        self.seen[shape] = count = self.seen.pop(shape, 0) + 1
        if len(self.seen) > MAX_SEEN:
            self.seen.popitem(last=False)
        return count


def predicting(hidden: Sequence[Tensor], kinds: Sequence[Kind]) -> list[Tensor]:
    """Return the hidden states to predict from."""
    return [part[PREDICTING[kind]] for part, kind in zip(hidden, kinds, strict=True) if kind in PREDICTING]


def _long(length: int, device: torch.device) -> Tensor:
    return torch.zeros(length, dtype=torch.long, device=device)


class Graph(Captured):
    """The tensors and the captured operations of passes of one shape."""

    def __init__(self, backend: Passes, shape: Shape, work: Sequence[Work], cache: KVCache) -> None:
        super().__init__(backend.model.device)
        self.backend, self.shape = backend, shape
        model = backend.model
        tokens, device = sum(shape.lengths), model.device
        self.pieces = ((shape.room, "text"), *shape.pieces) if shape.room else shape.pieces
        self.texts = [_long(length, device) for length, kind in self.pieces if kind not in HELD]
        self.tokens_T = _long(tokens, device)
        self.soft_TH = torch.zeros(tokens, model.config.hidden_size, dtype=model.dtype, device=device)
        self.temperature_T = torch.ones(tokens, device=device)
        self.key_T2 = torch.zeros(tokens, 2, dtype=torch.int32, device=device)
        kinds = [kind for _, kind in self.pieces]
        self.conditions = kinds.count("canvas") > kinds.count("verified")  # drafts have no self-conditioning
        self.canvases = None
        if shape.settings is not None:
            count = len(shape.lengths)
            length = shape.lengths[0]
            process = Process(
                settings=shape.settings,
                source=backend.source,
                seed=_long(count, device),
                vocab_size=model.config.vocab_size,
                eos=shape.eos,
                device=device,
            )
            self.canvases = Canvases(
                process, tokens_BC=self.tokens_T.view(count, length), soft_BCH=self.soft_TH.view(count, length, -1)
            )
        self.plan = backend.plan(self._segments(work, cache), cache, [length for length, _ in self.pieces])

    def run(self, work: Sequence[Work], cache: KVCache) -> Replayed:
        """Run the pass with this work."""
        segments = self._segments(work, cache)
        self.plan.move(segments, cache)
        for target, text in zip(self.texts, self._texts(work), strict=True):
            target[: len(text)].copy_(send(torch.tensor(text), target.device))
        requests = denoising(work)
        self.canvases.load(requests) if self.canvases else self._load(requests)
        self.replay()
        self.has_run = True
        note(segments, cache)
        return Replayed(partial(self._steps, requests), scored(work, self.hidden[0]) if self.shape.room else [])

    def _steps(self, requests: Sequence[Denoising]) -> list[Step]:
        if not requests:
            return []
        lengths = self.shape.lengths
        hidden = [
            hidden_CH.clone() if request.is_constrained else hidden_CH
            for request, hidden_CH in zip(requests, self.hidden_TH.split(lengths), strict=True)
        ]
        if self.canvases is None:
            predictions = self.prediction.clone().split(lengths)
            return [
                Step(prediction, None, hidden_CH) for prediction, hidden_CH in zip(predictions, hidden, strict=True)
            ]
        views = zip(requests, self.prediction.split(lengths), strict=True)
        copies = [view.clone() if request.is_constrained else None for request, view in views]
        after = self.canvases.after(requests, self.advanced)
        return [
            Step(prediction, canvas, hidden_CH)
            for prediction, canvas, hidden_CH in zip(copies, after, hidden, strict=True)
        ]

    def _segments(self, work: Sequence[Work], cache: KVCache) -> list[Segment]:
        slots = [self.backend.slot(item.adapter) for item in work]
        pieces = [
            (item.row, length, kind, slot)
            for item, slot in zip(work, slots, strict=True)
            for length, kind in item.pieces
        ]
        room = self.shape.room
        if room:
            pieces.sort(key=lambda piece: piece[2] not in TEXTS)
        segments = segments_of([(row, length, kind != "canvas", slot) for row, length, kind, slot in pieces], cache)
        if not room:
            return segments
        texts = [segment for segment, piece in zip(segments, pieces, strict=True) if piece[2] in TEXTS]
        empty = replace(texts[-1], start=texts[-1].start + texts[-1].length, length=0, slot=-1)
        padding = replace(empty, room=room - sum(segment.length for segment in texts))
        return [*texts, *[empty] * (SLOTS - 1 - len(texts)), padding, *segments[len(texts) :]]

    def _texts(self, work: Sequence[Work]) -> list[list[int]]:
        """Return the tokens of each piece of text."""
        pairs = [pair for item in work for pair in zip(item.texts, item.pieces, strict=False)]
        if not self.shape.room:
            return [[*text] for text, _ in pairs]
        return [texts_of(work), *([*text] for text, (_, kind) in pairs if kind not in TEXTS)]

    def _load(self, requests: Sequence[Denoising]) -> None:
        parts = (t.split(self.shape.lengths) for t in (self.tokens_T, self.soft_TH, self.temperature_T, self.key_T2))
        for request, tokens_C, soft_CH, temperature_C, key_C2 in zip(requests, *parts, strict=True):
            canvas, process = request.canvas, request.process
            tokens_C.copy_(canvas.tokens_C)
            soft_CH.zero_() if canvas.soft_CH is None else soft_CH.copy_(canvas.soft_CH)
            temperature_C.fill_(process.temperature(canvas))
            keys_C2 = process.draws(canvas).keys(len(tokens_C))
            assert keys_C2 is not None, "captured passes need the default source"
            key_C2.copy_(keys_C2)

    # --- the captured operations ----------------------------------------------------------------------------------

    def _pass(self) -> None:
        lengths, kinds = self.shape.lengths, [kind for _, kind in self.pieces]
        if self.canvases:
            with launching("rows"):
                self.canvases.prepare(self.temperature_T, self.key_T2)
        texts = iter(self.texts)
        pieces = []
        start = 0
        for length, kind in self.pieces:
            end = start + (length if kind in HELD else kind == "next")
            if kind in HELD:
                pieces.append(Piece(-1, self.tokens_T[start:end], kind == "verified", self.soft_TH[start:end]))
            else:
                pieces.append(Piece(-1, next(texts), causal=True))
            start = end
        self.hidden = self.backend.flow(self.plan, pieces)
        if not lengths:
            return
        self.hidden_TH = joined(predicting(self.hidden, kinds))
        self.prediction = self.backend.predict(
            *(self.hidden_TH, self.temperature_T, self.key_T2, lengths),
            soft=self.conditions,
            likely=self.shape.likely,
        )
        if self.canvases:
            with launching("rows"):
                self.advanced = self.canvases.step(self.prediction, self.backend.model)
