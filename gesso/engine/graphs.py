"""A pass as one CUDA graph: a thousand launches become one, and the steps of the canvases are part of it.

A pass has a shape: the pieces it is made of, and the settings under which its canvases go on. The first pass of a shape
runs operation by operation; the second is captured, and from then on it is replayed. Whatever else changes from pass to
pass is in tensors that stay where they are: tokens, positions, addresses of the cache, seeds, steps.

Where there are no graphs (on a CPU) a `Graph` calls its operations one by one; so tests can compare.

B canvases, C canvas, T tokens of all canvases, H hidden.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gesso import ops
from gesso.diffusion.canvas import Canvas
from gesso.engine.canvases import Canvases
from gesso.engine.running import Running
from gesso.engine.scheduler import Kind, Work
from gesso.model.cache import KVCache
from gesso.model.transformer import DiffusionGemma, Piece, Plan
from gesso.ops import Reading, Segment
from gesso.settings import Diffusion

MOST = 32  # shapes kept
# What asks nothing of the host, so that it can be part of a graph.
SAMPLERS = ("entropy-bound", "confidence-threshold", "argmax", "autoregressive")
STOPPINGS = ("stable", "fixed")


@dataclass(frozen=True)
class Shape:
    pieces: tuple[tuple[int, Kind], ...]
    lengths: tuple[int, ...]  # of what is read: the canvases, and the last tokens of some texts
    settings: Diffusion | None  # under which all of them take their step; None: they take it outside
    eos: frozenset[int]


def shape_of(work: Sequence[Work]) -> Shape | None:
    """Return the shape of a pass, or None if it cannot be captured: someone has to see logits, or a text is scored."""
    canvases = canvases_of(work)
    pieces = [piece for item in work for piece in item.pieces]
    if any(running.asks_for_logits for running in canvases) or any(kind == "scored" for _, kind in pieces):
        return None
    lengths = tuple(len(running.canvas.tokens_C) for running in canvases)
    ways = {(running.request.diffusion, running.request.eos) for running in canvases if _unwatched(running)}
    if len(ways) == 1 and len(set(lengths)) == 1 and all(map(_unwatched, canvases)):
        return Shape(tuple(pieces), lengths, *ways.pop())
    return Shape(tuple(pieces), lengths, None, frozenset())


def canvases_of(work: Sequence[Work]) -> list[Running]:
    """Return the requests whose canvases take a step in this pass."""
    return [running for item in work if (running := item.canvas_of) is not None]


def _unwatched(running: Running) -> bool:
    """Whether nobody has to look at a canvas between the prediction and the step."""
    settings = running.request.diffusion
    return settings.sampler in SAMPLERS and settings.stopping in STOPPINGS and running.request.guide is None


class Graphs:
    """The captured passes of an engine, by shape; those unused for longest are let go."""

    def __init__(self, model: DiffusionGemma) -> None:
        self.model, self.capturable = model, model.capturable
        self.seen: OrderedDict[Shape, Graph | None] = OrderedDict()
        self.pool: Any = None  # they share their memory: only one runs at a time, and what it gives is copied

    def find(self, work: Sequence[Work], cache: KVCache) -> "Graph | None":
        shape = shape_of(work) if self.capturable else None
        if shape is None:
            return None
        if shape not in self.seen:
            self.seen[shape] = None
            if len(self.seen) > MOST:
                self.seen.popitem(last=False)
            return None
        self.seen.move_to_end(shape)
        if (graph := self.seen[shape]) is None:
            alone = not any(self.seen.values())
            graph = self.seen[shape] = Graph(self.model, shape, work, cache)
            if self.model.device.type == "cuda":
                if alone:  # a pool ends with the last graph that has memory of it
                    self.pool = torch.cuda.graph_pool_handle()
                graph.capture(self.pool)
        return graph


def read_of(hidden: Sequence[Tensor], kinds: Sequence[Kind]) -> list[Tensor]:
    """The hidden states to make predictions of: those of canvases, and of texts whose next token is asked for."""
    read = {"canvas": slice(None), "next": slice(-1, None)}
    return [part[read[kind]] for part, kind in zip(hidden, kinds, strict=True) if kind in read]


def _long(length: int, device: torch.device) -> Tensor:
    return torch.zeros(length, dtype=torch.long, device=device)


@lru_cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that all graphs are captured on: the allocator keeps the free memory of streams apart.

    Its priority is high. Kernels that the rest waits for would otherwise queue behind those of the side stream.
    """
    return torch.cuda.Stream(device, priority=-1)


Step = tuple[Running, Reading | Canvas, Tensor]


class Graph:
    def __init__(self, model: DiffusionGemma, shape: Shape, work: Sequence[Work], cache: KVCache) -> None:
        self.model, self.shape = model, shape
        tokens, device = sum(shape.lengths), model.device
        self.texts = [_long(length, device) for length, kind in shape.pieces if kind != "canvas"]
        self.tokens_T = _long(tokens, device)
        self.soft_TH = torch.zeros(tokens, model.config.hidden_size, dtype=model.dtype, device=device)
        self.temperature_T = torch.ones(tokens, device=device)
        self.key_T2 = torch.zeros(tokens, 2, dtype=torch.int32, device=device)
        self.canvases = None
        if shape.settings is not None:
            size = len(shape.lengths), shape.lengths[0]
            states = self.tokens_T.view(size), self.soft_TH.view(*size, -1)
            self.canvases = Canvases(model, shape.settings, shape.eos, *states)
        self.plan = Plan(self._segments(work, cache), cache)
        self.replay: Callable[[], None] = self._pass

    def capture(self, pool: Any) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=_capture_stream(self.model.device)):
            self._pass()
        self.replay = graph.replay

    def run(self, work: Sequence[Work], cache: KVCache) -> list[Step]:
        """Each request, what was read or its canvas a step on, and its hidden states, good until the next pass."""
        segments = self._segments(work, cache)
        self.plan.move(segments, cache)
        for target, text in zip(self.texts, (text for item in work for text in item.texts), strict=True):
            target.copy_(ops.send(torch.tensor(text), target.device))
        requests = canvases_of(work)
        self.canvases.load(requests) if self.canvases else self._load(requests)
        self.replay()
        self.model.note(segments, cache)
        if not requests:
            return []
        found: Sequence[Reading | Canvas]
        found = self.canvases.after(requests) if self.canvases else self.reading.clone().split(self.shape.lengths)
        return list(zip(requests, found, self.hidden_TH.split(self.shape.lengths), strict=True))

    def _segments(self, work: Sequence[Work], cache: KVCache) -> list[Segment]:
        pieces = [(item.running.row, length, kind != "canvas") for item in work for length, kind in item.pieces]
        return self.model.segments(pieces, cache)

    def _load(self, requests: Sequence[Running]) -> None:
        parts = (t.split(self.shape.lengths) for t in (self.tokens_T, self.soft_TH, self.temperature_T, self.key_T2))
        for running, tokens_C, soft_CH, temperature_C, key_C2 in zip(requests, *parts, strict=True):
            canvas, process = running.canvas, running.process
            tokens_C.copy_(canvas.tokens_C)
            soft_CH.zero_() if canvas.soft_CH is None else soft_CH.copy_(canvas.soft_CH)
            temperature_C.fill_(process.temperature(canvas))
            keys_C2 = process.draws(canvas).keys(len(tokens_C))
            assert keys_C2 is not None, "graphs are for the default source"
            key_C2.copy_(keys_C2)

    # --- what is captured ---------------------------------------------------------------------------------------

    def _pass(self) -> None:
        model, lengths = self.model, self.shape.lengths
        if self.canvases:
            self.canvases.prepare(self.temperature_T, self.key_T2)
        kinds = [kind for _, kind in self.shape.pieces]
        texts = iter(self.texts)
        parts = zip(self.tokens_T.split(lengths), self.soft_TH.split(lengths), strict=True)
        canvases = ((tokens_C, False, soft_CH) for tokens_C, soft_CH in parts)
        pieces = [
            Piece(-1, *next(canvases)) if kind == "canvas" else Piece(-1, next(texts), causal=True) for kind in kinds
        ]
        hidden = model.flow(self.plan, pieces, model.decoder)
        if not lengths:
            return
        self.hidden_TH = torch.cat(read_of(hidden, kinds))
        self.reading = ops.vocab_tail(
            self.hidden_TH,
            model.head,
            model.decoder.embed_tokens.weight,
            model.embed_scale,
            model.config.final_logit_softcapping,
            self.temperature_T,
            self.key_T2,
            lengths,
            soft="canvas" in kinds,
        )
        if self.canvases:
            pin_T = self.canvases.canvas.pin_C.flatten()
            self.canvases.step(self.reading, model.conditioning(pin_T, self.reading.soft_TH))
