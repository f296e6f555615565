"""Who runs in the next pass: which requests have a row of the cache, and how much text each may encode."""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from gesso.engine.running import Running
from gesso.model.cache import KVCache

Kind = Literal["text", "canvas", "next"]  # "next": text that ends with the token whose successor is asked for


@dataclass(frozen=True)
class Work:
    """One running's part of a pass: pieces of its text, its canvas, or the former and then the latter."""

    running: Running
    texts: tuple[tuple[int, ...], ...]
    denoise: bool

    @property
    def pieces(self) -> list[tuple[int, Kind]]:
        """The length and kind of each piece. An autoregressive request has no canvas: the end of its text is read."""
        pieces: list[tuple[int, Kind]] = [(len(text), "text") for text in self.texts]
        if self.denoise and self.running.request.diffusion.autoregressive:
            pieces[-1] = (pieces[-1][0], "next")
        elif self.denoise:
            pieces.append((len(self.running.canvas.tokens_C), "canvas"))
        return pieces


@dataclass
class Row:
    """What a row of the cache holds: tokens, of which the first `whole` came in prompt pieces of full length."""

    tokens: list[int] = field(default_factory=list)
    whole: int = 0
    used: int = 0  # when it was last given to a request


class Scheduler:
    def __init__(self, max_batch: int, prefill: int, piece: int) -> None:
        self.prefill, self.piece = prefill, piece
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []
        self.rows = [Row() for _ in range(max_batch)]

    def next_row(self, cache: KVCache) -> int | None:
        """The row for the longest-waiting request; None: nobody waits, or no row is free.

        The one that holds most of its prompt already; else one with nothing to lose; else the one longest unused.
        """
        busy = {running.row for running in self.running}
        free = [row for row in range(len(self.rows)) if row not in busy]
        if not self.waiting or not free:
            return None
        prompt = self.waiting[0].request.prompt

        def worth(row: int) -> tuple[int, bool, int, int]:
            return self.reusable(row, prompt, cache), self.rows[row].whole == 0, -self.rows[row].used, -row

        return max(free, key=worth)

    def plan(self) -> list[Work]:
        """Every canvas that is ready takes a step; prompts share the room for text, the oldest request first."""
        work, room = [], self.prefill
        for running in self.running:
            texts: list[tuple[int, ...]] = []
            for text in running.pending:
                reading = len(running.request.prompt) - len(self.rows[running.row].tokens) - sum(map(len, texts))
                if reading > 0:
                    # A pass ends with the last whole piece, where the cache is saved for the next turn.
                    if len(text) > room or (texts and len(text) < self.piece):
                        break
                    room -= len(text)
                texts.append(text)
            denoise = len(texts) == len(running.pending)
            if texts or denoise:
                work.append(Work(running, tuple(texts), denoise))
        return work

    def remove(self, running: Running) -> None:
        if running in self.running:
            self.running.remove(running)
        else:
            self.waiting.remove(running)

    def reusable(self, row: int, prompt: tuple[int, ...], cache: KVCache) -> int:
        """How many tokens of the prompt can be taken over as they would be computed anew: whole pieces only."""
        held = self.rows[row]
        limit = min(held.whole, len(prompt))
        common = next((i for i in range(limit) if held.tokens[i] != prompt[i]), limit)
        cuts = range(common - common % self.piece, 0, -self.piece)
        return next((cut for cut in cuts if cache.can_cut(row, cut)), 0)
