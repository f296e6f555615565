"""One pass through the model for all the work of a step. C canvas, H hidden, T tokens of all canvases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gesso import ops
from gesso.diffusion.canvas import Canvas
from gesso.diffusion.samplers import Prediction
from gesso.engine.events import Likely
from gesso.engine.graphs import Graphs, canvases_of, read_of
from gesso.engine.guided import guided, is_left_alone, keeps
from gesso.engine.running import Running
from gesso.engine.scheduler import Work
from gesso.engine.scoring import Scoring
from gesso.model.cache import KVCache
from gesso.model.transformer import DiffusionGemma, Piece
from gesso.ops import Reading


@dataclass(frozen=True)
class Outcome:
    running: Running
    advance: Callable[[], Canvas]  # the canvas after this step; may raise what a sampler of the caller's own raises
    hidden_CH: Tensor  # good until the next pass


@dataclass(frozen=True)
class Encoded:
    """Hidden states of the positions that predict a scored text, as far as this pass has read it."""

    running: Scoring
    hidden_SH: Tensor


class Runner:
    def __init__(self, model: DiffusionGemma, graphs: Graphs | None = None) -> None:
        self.model, self.graphs = model, graphs

    def drop_graphs(self) -> None:
        """Forget the captured passes, and with them their memory."""
        if self.graphs:
            self.graphs = Graphs(self.model)

    def free_memory(self) -> None:
        """Give back what is only kept for speed: captured passes and the allocator's free blocks."""
        self.drop_graphs()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    @ops.fast_products()
    def run(self, work: Sequence[Work], cache: KVCache) -> list[Outcome | Encoded]:
        """Encode the text and denoise the canvases; return an outcome per canvas and per scored text."""
        work = sorted(work, key=lambda item: [len(text) for text in item.texts])  # so that fewer shapes of work exist
        if self.graphs and (graph := self.graphs.find(work, cache)):  # which is never one of a pass that scores
            return [self._replayed(*step) for step in graph.run(work, cache)]
        pieces, kinds = [], []
        for item in work:
            row = item.running.row
            kinds += [kind for _, kind in item.pieces]
            for text in item.texts:
                pieces.append(Piece(row, torch.tensor(text, device=self.model.device), causal=True))
            if kinds[-1] == "canvas" and (running := item.canvas_of):
                pieces.append(Piece(row, running.canvas.tokens_C, causal=False, soft_SH=running.canvas.soft_CH))
        hidden = self.model.run(pieces, cache)
        requests = canvases_of(work)
        outcomes = self._read(requests, read_of(hidden, kinds)) if requests else []
        return [*outcomes, *self._encoded(work, hidden)]

    def _encoded(self, work: Sequence[Work], hidden: Sequence[Tensor]) -> list[Encoded]:
        parts, found = iter(hidden), []
        for item in work:
            own = [next(parts) for _ in item.pieces]
            if isinstance(scoring := item.running, Scoring):
                starts = zip(item.starts, own, strict=True)
                scored_SH = torch.cat([part[scoring.scored(start, len(part))] for start, part in starts])
                if len(scored_SH):
                    found.append(Encoded(scoring, scored_SH))
        return found

    def _replayed(self, running: Running, found: Reading | Canvas, hidden_CH: Tensor) -> Outcome:
        if isinstance(found, Reading):
            return self._outcome(running, found, hidden_CH)
        return Outcome(running, lambda: found, hidden_CH)

    def _read(self, requests: Sequence[Running], hidden: Sequence[Tensor]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        hidden_of = {running.id: hidden_CH for running, hidden_CH in zip(requests, hidden, strict=True)}
        streamed = []
        for running, hidden_CH in zip(requests, hidden, strict=True):
            keys_C2 = running.process.draws(running.canvas).keys(len(hidden_CH))
            if keys_C2 is None or self._shows_logits(running):
                outcomes[running.id] = self._read_logits(running, hidden_CH)
            else:
                streamed.append((running, hidden_CH, keys_C2))
        if streamed:
            lengths = [len(hidden_CH) for _, hidden_CH, _ in streamed]
            reading = ops.vocab_tail(
                torch.cat([hidden_CH for _, hidden_CH, _ in streamed]),
                self.model.head,
                self.model.decoder.embed_tokens.weight,
                self.model.embed_scale,
                self.model.config.final_logit_softcapping,
                torch.cat(
                    [
                        hidden_CH.new_full((len(hidden_CH),), r.process.temperature(r.canvas), dtype=torch.float32)
                        for r, hidden_CH, _ in streamed
                    ]
                ),
                torch.cat([keys_C2 for _, _, keys_C2 in streamed]),
                lengths,
                soft=not all(running.request.diffusion.autoregressive for running, _, _ in streamed),
            )
            for (running, _, _), part in zip(streamed, reading.split(lengths), strict=True):
                outcomes[running.id] = self._outcome(running, part, hidden_of[running.id])
        return [outcomes[running.id] for running in requests]

    def _shows_logits(self, running: Running) -> bool:
        """Whether a request's prediction is made from all its logits at once.

        Where passes may be captured, a constraint's correction is no reason for that: a captured pass never does it, it
        gives other last bits, and the text would depend on whether a pass of this shape has been seen before.
        """
        return running.needs_logits if self.graphs is None else running.asks_for_logits

    def _read_logits(self, running: Running, hidden_CH: Tensor) -> Outcome:
        """Return the outcome of a request that has to see all logits: for its sampler, its source or its constraint.

        They are computed when its canvas advances and freed after that, so that one request's [C, V] exist at a time.
        """

        @torch.no_grad()
        @ops.fast_products()
        def advance() -> Canvas:
            model, process = self.model, running.process
            logits_CV = model.logits(hidden_CH) / process.temperature(running.canvas)
            candidate_C = process.draws(running.canvas).candidates(logits_CV)
            embedding_VH, scale = model.decoder.embed_tokens.weight, model.embed_scale
            reading = ops.read(logits_CV, candidate_C, embedding_VH, scale, model.dtype)
            return self._step(running, reading, hidden_CH, logits_CV)()

        return Outcome(running, advance, hidden_CH)

    @torch.no_grad()
    @ops.fast_products()
    def score(self, encoded: Encoded) -> None:
        """Score the positions of a text that this pass has read."""
        encoded.running.read(encoded.hidden_SH, self.model.logits)

    @torch.no_grad()
    def likely(self, hidden_CH: Tensor, temperature: float, tokens_C: Tensor, count: int) -> list[Likely]:
        """How likely each token was, and which others were; from hidden states, to leave the pass itself as it is."""
        found = []
        for hidden_RH, token_R in zip(hidden_CH.split(32), tokens_C.split(32), strict=True):  # 32 V floats at once
            log_probability_RV = (self.model.logits(hidden_RH) / temperature).log_softmax(-1)
            own_R = log_probability_RV.gather(-1, token_R[:, None])[:, 0].tolist()
            top = log_probability_RV.topk(count, -1)
            pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            rows = [tuple(zip(ids, values, strict=True)) for ids, values in pairs]
            found += [Likely(own, row) for own, row in zip(own_R, rows, strict=True)]
        return found

    def _outcome(self, running: Running, reading: Reading, hidden_CH: Tensor) -> Outcome:
        return Outcome(running, self._step(running, reading, hidden_CH), hidden_CH)

    def _step(
        self, running: Running, reading: Reading, hidden_CH: Tensor, logits_CV: Tensor | None = None
    ) -> Callable[[], Canvas]:
        """Return the function that makes the step of a canvas, under its constraint if it has one."""
        shown_CV = logits_CV if running.asks_for_logits else None
        own = Prediction(reading.candidate_T, reading.argmax_T, reading.confidence_T, reading.entropy_T, shown_CV)
        soft_CH = self.model.conditioning(running.canvas.pin_C, reading.soft_TH)
        advance = partial(running.process.advance, running.canvas, soft_CH=soft_CH)
        if running.request.guide is None:
            return partial(advance, own)

        @torch.no_grad()  # called after the pass, and computes logits as a pass does
        @ops.fast_products()
        def held() -> Canvas:
            found = guided(running, reading, lambda: self.model.logits(hidden_CH) if logits_CV is None else logits_CV)
            if found is reading:
                return advance(own)
            return advance(replace(own, candidate_C=found.candidate_T, argmax_C=found.argmax_T, corrected=True))

        def free() -> Canvas:
            after = advance(own)
            return after if keeps(running, after) else held()

        return free if is_left_alone(running) else held
