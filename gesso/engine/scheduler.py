"""Choose the work of the next pass: which requests get a cache row, and how much text each of them reads."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from gesso.backends.base import Kind
from gesso.engine.pieces import Cuts
from gesso.engine.running import Running
from gesso.engine.scoring import Scoring
from gesso.images.tokens import is_image
from gesso.model.cache import KVCache

Job = Running | Scoring
PACE = 8  # passes with canvases in which one request may read as many tokens as in one pass without
PATIENCE = 4  # a text comes first after so many passes that read only others


@dataclass(frozen=True)
class ScheduledWork:
    """One request's part of a pass: pieces of its text, its canvas, or both in this order."""

    running: Job
    texts: tuple[tuple[int, ...], ...]
    denoise: bool
    start: int = 0  # tokens in the request's row before this pass

    @property
    def starts(self) -> list[int]:
        """The position of the first token of each text."""
        return list(accumulate(map(len, self.texts), initial=self.start))[:-1]

    @property
    def end(self) -> int:
        """The number of tokens in the row after this pass."""
        return self.start + sum(map(len, self.texts))

    @property
    def row(self) -> int:
        return self.running.row

    @property
    def adapter(self) -> str | None:
        return self.running.request.adapter

    @property
    def writes(self) -> bool:
        """Whether this pass writes to the row: the text, or a draft to verify."""
        running = self.denoising
        return bool(self.texts) or (running is not None and running.request.diffusion.verified)

    @property
    def denoising(self) -> Running | None:
        """The request whose canvas, or next token, this pass predicts."""
        return self.running if self.denoise and isinstance(self.running, Running) else None

    @property
    def pieces(self) -> list[tuple[int, Kind]]:
        """The length and kind of each piece. Token by token there is no canvas; the last text is "next".

        In verified decoding, the text to verify comes after the canvas, which does not see it.
        """
        running, lengths = self.running, [len(text) for text in self.texts]
        if isinstance(running, Scoring):
            slices = [running.scored(*piece) for piece in zip(self.starts, lengths, strict=True)]
            return [(n, "scored" if part.start < n else "text") for n, part in zip(lengths, slices, strict=True)]
        pieces: list[tuple[int, Kind]]
        pieces = [(len(text), "image" if is_image(text[0]) else "text") for text in self.texts]
        if self.denoise and running.request.diffusion.token_by_token:
            pieces[-1] = (pieces[-1][0], "next")
        elif self.denoise and running.request.diffusion.verified:
            length = len(running.canvas.tokens_C) // 2
            pieces += [(length, "canvas"), (length, "verified")]
        elif self.denoise:
            pieces.append((len(running.canvas.tokens_C), "canvas"))
        return pieces


@dataclass
class Row:
    """The contents of a cache row: tokens, of which the first `whole` were encoded in the whole pieces of a prompt.

    `cuts` are those of the prompt. `adapter_epoch` is that of the adapter they were encoded with, see
    `gesso.engine.adapters`.
    """

    tokens: list[int] = field(default_factory=list)
    cuts: Cuts = field(default_factory=lambda: Cuts(0))
    whole: int = 0
    adapter_epoch: int = 0
    used: int = 0  # when it was last assigned to a request


class Scheduler:
    def __init__(self, max_batch: int, prefill: int, piece: int) -> None:
        self.prefill, self.piece = prefill, piece
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.rows = [Row() for _ in range(max_batch)]
        self.unused = prefill  # tokens that the last pass could have read and did not
        self.apart = False  # whether a pass reads at most one whole piece of a prompt, so that each can be stored

    def next_row(self, cache: KVCache) -> int | None:
        """Return the row for the request that has waited longest, or None if none waits or no row is free.

        Prefer the row that holds most of its prompt, then one without reusable contents, then the least recently used.
        """
        busy = {running.row for running in self.running}
        free = [row for row in range(len(self.rows)) if row not in busy]
        if not self.waiting or not free:
            return None
        job = self.waiting[0]

        def worth(row: int) -> tuple[int, bool, int, int]:
            reusable = self.reusable(row, job, len(job.request.prompt), cache)
            return reusable, self.rows[row].whole == 0, -self.rows[row].used, -row

        return max(free, key=worth)

    def plan(self, jobs: Sequence[Job] | None = None) -> list[ScheduledWork]:
        """Return the work of the next pass, for all running requests or for these.

        Every canvas that is ready takes a step. Prompts and texts to score are read in order of their remaining length,
        unless a longer one has been left out `PATIENCE` times.
        """
        jobs = self.running if jobs is None else jobs
        reading, read, full, denoising = sum(map(self._unread, jobs)), 0, False, False
        work: dict[int, ScheduledWork] = {}
        for job in sorted(jobs, key=self._rank):
            start = end = len(self.rows[job.row].tokens)
            saved = job.saved_length
            texts: list[tuple[int, ...]] = []
            for text in job.pending:
                if self._counts(job, end, len(job.pending) - len(texts)):
                    full = full or read + min(len(text), self.prefill) > self._budget(reading, denoising)
                    # End the pass where the row is saved, so that the rest of the prompt is not yet in it.
                    if full or (texts and (end == saved or (self.apart and job.cuts.has(end)))):
                        break
                    read += len(text)
                texts.append(text)
                end += len(text)
            denoise = isinstance(job, Running) and len(texts) == len(job.pending)
            job.left_out = 0 if texts or denoise else job.left_out + (read > 0)
            if texts or denoise:
                work[job.id] = ScheduledWork(job, tuple(texts), denoise, start)
            denoising = denoising or denoise
        self.unused = max(0, self._budget(reading, denoising) - read)
        return [work[job.id] for job in jobs if job.id in work]

    def _budget(self, reading: int, denoising: bool) -> int:
        """Return the number of text tokens that this pass may read.

        In a pass with canvases, each reading request adds its part to the budget, which accumulates until a piece fits.
        So canvases slow down with the number of reading requests, not with the length of their texts.
        """
        return min(self.prefill, self.unused + reading * max(1, self.prefill // PACE)) if denoising else self.prefill

    def _counts(self, job: Job, start: int, pieces: int) -> bool:
        """Return whether the text at token `start`, the first of `pieces` pieces, counts in the budget.

        A committed canvas does not: it is no longer than the canvas that follows it. One of several does, as after a
        failed pass, when they are encoded again.
        """
        return isinstance(job, Scoring) or start < len(job.request.prompt) or pieces > 1

    def _unread(self, job: Job) -> bool:
        """Return whether a job has text to read that counts in the budget."""
        return bool(job.pending) and self._counts(job, len(self.rows[job.row].tokens), len(job.pending))

    def _rank(self, job: Job) -> tuple[bool, int]:
        """Order canvases before texts, then texts left out too often, then short texts before long ones."""
        return self._unread(job), -job.left_out if job.left_out >= PATIENCE else sum(map(len, job.pending))

    def remove(self, running: Job) -> None:
        if running in self.running:
            self.running.remove(running)
        else:
            self.waiting.remove(running)

    def reusable(self, row: int, job: Job, most: int, cache: KVCache) -> int:
        """Return how many of the first `most` tokens of a job's prompt can be reused from the row with the same bits:
        whole pieces only.

        Keys and values of another adapter, or of a former one with the same name, are never reused.
        """
        cached = self.rows[row]
        if cached.adapter_epoch != job.adapter_epoch:
            return 0
        same, start, prompt = [], 0, job.request.prompt
        for end in job.cuts.ends(min(cached.whole, most)):
            if prompt[start:end] != tuple(cached.tokens[start:end]):
                break
            same.append(end)
            start = end
        # The row's prompt may have no image where this one has one, so that it is not cut there.
        return next((end for end in reversed(same) if cached.cuts.has(end) and cache.can_cut(row, end)), 0)
