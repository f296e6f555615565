"""Run the passes of the engine: pieces to the backend, predictions to the canvases.

C canvas, S scored positions, H hidden, V vocabulary, R rows of a chunk, N tokens of compared texts.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gesso.backends.base import PREDICTING, Backend, Piece, Step
from gesso.backends.torch import summarize
from gesso.constraints.budget import Paused, Pauses, deadline, pausing, repeated
from gesso.diffusion.canvas import Canvas
from gesso.diffusion.noise import HashSource, NoiseSource
from gesso.diffusion.prediction import Prediction
from gesso.diffusion.verified import advance as advance_verified
from gesso.diffusion.verified import halves
from gesso.engine.events import Likely
from gesso.engine.guided import Candidates, Correction, guided, is_uncorrected, satisfies_constraint
from gesso.engine.request import Request
from gesso.engine.running import Running
from gesso.engine.scheduler import ScheduledWork
from gesso.engine.scoring import Scoring, check_scores, likely_tokens
from gesso.engine.seen import Seen
from gesso.images.tokens import is_image
from gesso.model.cache import KVCache

ROWS = 32  # positions whose logits are in memory at once


@dataclass(frozen=True, kw_only=True)
class SearchTimes:
    """Seconds of host work for constrained requests, after which others go on."""

    checks: float = 0.005  # all checks of a pass's predictions; later ones go on as parts of searches
    check: float = 0.0005  # one check, even if `checks` is used up
    beside_pass: float = 0.001  # searches beside a pass, however short it is
    between_passes: float = 0.02  # searches between two passes, if there is no other pass beside which to run
    # One search after a pass where none runs beside it: as long as the pass, within these bounds. Few searches take
    # longer, except those of constraints made to be slow.
    least_at_once: float = 0.05
    most_at_once: float = 0.25
    share: float = 0.5  # of the time of such a pass, for the searches that have paused


SEARCH_TIMES = SearchTimes()

# Search on the host, with pauses, without waiting for a pass that the device is running. Return the function that takes
# the step.
Search = Pauses[Callable[[], Canvas]]


@dataclass(frozen=True)
class CanvasOutcome:
    """The result of a pass for one canvas.

    The step itself is deferred: the logits of one request exist at a time, and an error of a custom sampler fails one
    request only.
    """

    running: Running
    advance: Callable[[], Canvas | Search]  # take the step, or return the search that the constraint needs before it
    hidden_CH: Tensor  # valid until the next pass; if the request searches, also after that


@dataclass(frozen=True)
class Encoded:
    """Hidden states of the positions that predict a scored text, as far as this pass has read it."""

    running: Scoring
    hidden_SH: Tensor


def _parts(work: Sequence[ScheduledWork]) -> list[list[ScheduledWork]]:
    """Divide a pass into its texts, its canvases, and the tokens that are written one by one.

    Texts before a next token stay with it.
    """
    apart = [item for item in work if item.pieces[-1][1] != "next"]
    texts = [ScheduledWork(item.running, item.texts, False, item.start) for item in apart if item.texts]
    steps = [ScheduledWork(item.running, (), True, item.end) for item in apart if item.denoise]
    canvases = [item for item in steps if item.pieces[-1][1] == "canvas"]
    verified = [item for item in steps if item.pieces[-1][1] == "verified"]
    tokens = [*verified, *(item for item in work if item.pieces[-1][1] == "next")]
    return [part for part in (texts, canvases, tokens) if part]


def _encoded(work: Sequence[ScheduledWork], scored: Sequence[Tensor]) -> list[Encoded]:
    """Return the hidden states that predict scored texts, piece by piece, from those of all pieces that are scored."""
    parts, encoded = iter(scored), []
    for item in work:
        for start, (length, kind) in zip(item.starts, item.pieces, strict=False):
            if isinstance(item.running, Scoring) and kind == "scored":
                encoded.append(Encoded(item.running, next(parts)[item.running.scored(start, length)]))
    return encoded


def _joined(outcomes: Sequence[CanvasOutcome | Encoded]) -> list[CanvasOutcome | Encoded]:
    """Join the pieces of each scored text."""
    scored: dict[Scoring, list[Tensor]] = {}
    for each in outcomes:
        if isinstance(each, Encoded):
            scored.setdefault(each.running, []).append(each.hidden_SH)
    joined = [Encoded(running, torch.cat(parts)) for running, parts in scored.items()]
    return [*(each for each in outcomes if isinstance(each, CanvasOutcome)), *joined]


class Runner:
    """Run passes on a backend."""

    def __init__(self, backend: Backend, source: NoiseSource, times: SearchTimes = SEARCH_TIMES) -> None:
        self.backend, self.model = backend, backend.model
        self.seen = Seen(backend.see, self.model.device)
        self.captures = backend.captures and isinstance(source, HashSource)  # custom sources draw on the host
        self.times = times
        self.checked_enough = deadline(times.checks)  # whether the checks after the last pass have used up their time
        self.last: torch.cuda.Event | None = None  # the end of the last pass
        # Logits for a search overtake the kernels of a pass, on a stream of higher priority.
        self.aside = torch.cuda.Stream(self.model.device, priority=-2) if self.model.device.type == "cuda" else None

    def free_memory(self) -> None:
        """Release memory that is kept only for speed: captured passes and the allocator's free blocks."""
        self.backend.drop_captured()
        gc.collect()  # an engine process of a server has few collections
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def run(
        self, work: Sequence[ScheduledWork], cache: KVCache, launched: Callable[[], None] = lambda: None
    ) -> list[CanvasOutcome | Encoded]:
        """Encode the text and denoise the canvases; return one outcome per canvas and per scored text.

        Call `launched` when the device has its work, before reading the results.
        """
        found = self._run(work, cache, launched)
        self._keep_up()
        self.checked_enough = deadline(self.times.checks)
        return found

    def _keep_up(self) -> None:
        """Wait for the pass before the last one.

        A pass that only reads text has no results to wait for. Otherwise all passes over a long prompt would be queued
        at once, and a new request would wait for all of them.
        """
        if self.model.device.type == "cuda":
            before, self.last = self.last, torch.cuda.Event()
            self.last.record()
            if before is not None:
                before.synchronize()

    def _run(
        self, work: Sequence[ScheduledWork], cache: KVCache, launched: Callable[[], None]
    ) -> list[CanvasOutcome | Encoded]:
        work = sorted(work, key=lambda item: [len(text) for text in item.texts])  # fewer distinct shapes of passes
        requests = [running for item in work if (running := item.denoising) is not None]
        if self.captures:
            if (found := self.backend.replay(work, cache)) is not None:
                launched()
                outcomes = [self._outcome(*pair) for pair in zip(requests, found.steps(), strict=True)]
                return _joined([*outcomes, *_encoded(work, found.scored)])
            if self.backend.divides(work) and len(divided := _parts(work)) > 1:
                *first, last = divided
                earlier = [outcome for part in first for outcome in self.run(part, cache)]
                return _joined([*earlier, *self.run(last, cache, launched)])
        hidden = self.backend.run([piece for item in work for piece in self._pieces(item)], cache)
        parts, predicting, scored = iter(hidden), [], []
        for item in work:
            own = [(next(parts), kind) for _, kind in item.pieces]
            if read := [part[PREDICTING[kind]] for part, kind in own if kind in PREDICTING]:
                predicting.append(torch.cat(read) if len(read) > 1 else read[0])
            scored += [part for part, kind in own if kind == "scored"]
        outcomes = self._predict(requests, predicting)
        launched()
        return _joined([*outcomes, *_encoded(work, scored)])

    def is_over(self) -> Callable[[], bool]:
        """Return a function that tells whether the device has finished all work that was launched before.

        If that was little, searches go on for some time: otherwise they would wait for many passes.
        """
        is_late = deadline(self.times.beside_pass)
        if self.model.device.type != "cuda":
            return is_late
        event = torch.cuda.Event()
        event.record()
        return lambda: event.query() and is_late()

    def _pieces(self, item: ScheduledWork) -> list[Piece]:
        device, row, adapter = self.model.device, item.row, item.adapter
        pieces = []
        for text in item.texts:
            image_SH = self._features(item, text[0]) if is_image(text[0]) else None
            ids_S = torch.tensor(text if image_SH is None else [0] * len(text), device=device)
            pieces.append(Piece(row, ids_S, causal=True, adapter=adapter, image_SH=image_SH))
        last, running = item.pieces[-1][1], item.denoising
        if last == "verified" and running is not None:
            for tokens_L, causal in zip(halves(running.canvas.tokens_C), (False, True), strict=True):
                pieces.append(Piece(row, tokens_L, causal=causal, adapter=adapter))
        elif last == "canvas" and running is not None:
            canvas = running.canvas
            pieces.append(Piece(row, canvas.tokens_C, causal=False, soft_SH=canvas.soft_CH, adapter=adapter))
        return pieces

    def _features(self, item: ScheduledWork, token: int) -> Tensor:
        """Return the features of the image that a token belongs to."""
        request = item.running.request
        assert isinstance(request, Request), "texts to score have no images"
        return self.seen.features(request.image(token))

    def _predict(self, requests: Sequence[Running], hidden: Sequence[Tensor]) -> list[CanvasOutcome]:
        """Predict for all requests together, except those that need all logits."""
        outcomes: dict[int, CanvasOutcome] = {}
        together = []
        for running, hidden_CH in zip(requests, hidden, strict=True):
            keys_C2 = running.process.draws(running.canvas).keys(len(hidden_CH))
            if keys_C2 is None or self._predicts_from_logits(running):
                outcomes[running.id] = self._from_logits(running, hidden_CH)
            else:
                temperature = running.process.temperature(running.canvas)
                temperature_C = hidden_CH.new_full((len(hidden_CH),), temperature, dtype=torch.float32)
                together.append((running, hidden_CH, temperature_C, keys_C2))
        if together:
            chosen, hiddens, temperatures, keys = zip(*together, strict=True)
            lengths = [len(hidden_CH) for hidden_CH in hiddens]
            soft = not all(running.request.diffusion.by_token for running in chosen)
            rows = torch.cat(hiddens), torch.cat(temperatures), torch.cat(keys)
            likely = self.captures and any(running.is_constrained for running in chosen)
            found = self.backend.predict(*rows, lengths, soft, likely)
            for running, hidden_CH, prediction in zip(chosen, hiddens, found.split(lengths), strict=True):
                outcomes[running.id] = CanvasOutcome(running, self._advance(running, prediction, hidden_CH), hidden_CH)
        return [outcomes[running.id] for running in requests]

    def _predicts_from_logits(self, running: Running) -> bool:
        """Return whether to predict from all logits at once.

        If passes are captured, corrections by a constraint and restricted draws do not count. A captured pass never
        predicts from all logits, whose last bits differ, so the text would depend on whether a pass of this shape was
        captured.
        """
        return running.needs_all_logits if self.captures else running.expects_logits

    def _from_logits(self, running: Running, hidden_CH: Tensor) -> CanvasOutcome:
        """Return the outcome of a request that needs all logits: for draws, sampler, source or constraint.

        They are computed when the canvas advances and freed after that, so that only one request's [C, V] exist at a
        time.
        """

        def advance() -> Canvas | Search:
            process = running.process
            logits_CV = self.backend.logits(hidden_CH) / process.temperature(running.canvas)
            candidate_C = process.candidates(running.canvas, logits_CV)
            prediction = replace(summarize(self.model, logits_CV, candidate_C, True), logits_CV=logits_CV)
            return self._advance(running, prediction, hidden_CH)()

        return CanvasOutcome(running, advance, hidden_CH)

    def _drawn_within(self, running: Running, prediction: Prediction, hidden_CH: Tensor) -> Prediction:
        """Return the prediction with candidates that the request's settings allow."""
        settings, process, canvas = running.request.diffusion, running.process, running.canvas
        if not settings.restricts_draws or prediction.logits_CV is not None:  # with all logits, they have been
            return prediction
        found = process.temperature(canvas), process.draws(canvas)
        return replace(prediction, candidate_C=self.backend.draw_within(settings, hidden_CH, *found))

    def _verify(self, running: Running, prediction: Prediction) -> Canvas:
        """Return the canvas with the tokens that the causal encoder decided."""
        limit = running.request.max_new_tokens - len(running.tokens)
        return advance_verified(running.process, running.canvas, prediction, limit)

    def score(self, encoded: Encoded) -> None:
        """Score the positions of a text that this pass has read."""
        encoded.running.read(encoded.hidden_SH, self.backend.logits)

    def likely(self, outcome: CanvasOutcome, after: Canvas, count: int | None) -> list[Likely]:
        """Return the log-probabilities that the last step gave to the canvas' tokens, and to the `count` most probable
        ones at their positions; None: nothing.
        """
        if count is None:
            return []
        running, hidden_CH, found = outcome.running, outcome.hidden_CH, []
        temperature = running.process.temperature(replace(after, step=after.step - 1))
        if running.request.diffusion.verified:
            hidden_CH = halves(hidden_CH)[1][: len(after.tokens_C)]
        for hidden_RH, token_R in zip(hidden_CH.split(ROWS), after.result_C.split(ROWS), strict=True):
            log_probability_RV = (self.backend.logits(hidden_RH) / temperature).log_softmax(-1)
            found += likely_tokens(log_probability_RV, token_R, count)
        return found

    def compare(self, running: Running, hidden_CH: Tensor) -> tuple[float, ...]:
        """Return the log-probability of each compared text at the start of a canvas, and of its end if it has one.

        It is the sum over the positions: each position predicts its token without knowing the others. A position ends
        the text if it has one of the request's end-of-text tokens.
        """
        request, vocab_size = running.request, self.model.config.vocab_size
        end = (vocab_size,) if request.eos else ()  # stands for any of the end-of-text tokens
        texts = [(*text, *end) for text in request.compared]
        totals = [0.0] * len(texts)
        for start in range(0, max(map(len, texts)), ROWS):
            log_probability_RV = self.backend.logits(hidden_CH[start : start + ROWS]).log_softmax(-1)
            if end:
                end_R = log_probability_RV[:, running.process.eos_E].logsumexp(-1)
                log_probability_RV = torch.cat([log_probability_RV, end_R[:, None]], -1)
            parts = [text[start : start + ROWS] for text in texts]
            index_N = torch.tensor([row for part in parts for row in range(len(part))], device=hidden_CH.device)
            token_N = torch.tensor([token for part in parts for token in part], device=hidden_CH.device)
            values = iter(log_probability_RV[index_N, token_N].tolist())
            for text, part in enumerate(parts):
                for _ in part:
                    totals[text] += next(values)
        check_scores(totals)
        return tuple(totals)

    def _outcome(self, running: Running, step: Step) -> CanvasOutcome:
        after = step.after
        if after is not None and step.prediction is None:
            return CanvasOutcome(running, lambda: after, step.hidden_CH)
        if step.prediction is None:
            return self._from_logits(running, step.hidden_CH)
        return CanvasOutcome(running, self._advance(running, step.prediction, step.hidden_CH, after), step.hidden_CH)

    def _advance(
        self, running: Running, prediction: Prediction, hidden_CH: Tensor, after: Canvas | None = None
    ) -> Callable[[], Canvas | Search]:
        """Return the function that takes the step of a canvas, under its constraint if it has one.

        `after` is the canvas after the step, if the pass has already taken it.
        """
        if running.request.diffusion.verified:
            return lambda: self._verify(running, self._drawn_within(running, prediction, hidden_CH))
        advance = partial(running.process.advance, running.canvas)

        @cache
        def conditioned() -> Prediction:
            own = self._drawn_within(running, prediction, hidden_CH)
            soft_CH, logits_CV = own.soft_CH, own.logits_CV
            return replace(
                own,
                soft_CH=None if soft_CH is None else self.model.conditioning(running.canvas.pin_C, soft_CH),
                logits_CV=logits_CV if running.needs_all_logits else None,
            )

        def step() -> Canvas:
            return advance(conditioned()) if after is None else after

        if running.request.guide is None:
            return step

        def checked() -> Canvas | Correction:
            if is_uncorrected(running) and satisfies_constraint(running, free := step()):
                return free
            own = conditioned()
            found = guided(running, own, partial(self._candidates, running, prediction, hidden_CH))
            if isinstance(found, Correction):
                return found
            return step() if found is own else advance(found)

        def search(found: Correction | None) -> Search:
            known = found or (yield from repeated(checked))
            if isinstance(known, Canvas):
                return lambda: known
            tokens = yield from known.search()
            return lambda: advance(known.prediction(tokens))

        def constrained() -> Canvas | Search:
            try:
                least = deadline(self.times.check)
                with pausing(lambda: self.checked_enough() and least()):
                    found = checked()
            except Paused:
                return search(None)
            return search(found) if isinstance(found, Correction) else found

        return constrained

    def _candidates(self, running: Running, prediction: Prediction, hidden_CH: Tensor, start: int) -> Candidates:
        """Return the tokens that a constraint may choose from at the positions from `start` on."""
        tokens_CK, logits_CK, hidden_CH = prediction.likely_CK, prediction.likely_logit_CK, hidden_CH[start:]
        if tokens_CK is None or logits_CK is None:
            if prediction.logits_CV is None:
                return Candidates.of(self.backend.logits(hidden_CH))
            return Candidates.of(prediction.logits_CV[start:] * running.process.temperature(running.canvas))
        # The hidden states are ready when their likely tokens have been read.
        found = tokens_CK[start:].cpu().numpy(), logits_CK[start:].cpu().numpy()
        return Candidates(*found, partial(self._logits_at_tokens, hidden_CH))

    def _logits_at_tokens(self, hidden_CH: Tensor, tokens_U: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the logits [C, U] of these tokens, while the device may be running another pass."""
        with torch.cuda.stream(self.aside):  # None on a CPU, which has no streams
            found: NDArray[np.float32]
            found = self.backend.logits_of(hidden_CH, torch.from_numpy(tokens_U).to(hidden_CH.device)).cpu().numpy()
        return found
