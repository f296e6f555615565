"""Who runs in the next pass: which requests have a row of the cache, and how much text each may encode."""

from collections import deque
from dataclasses import dataclass, field

from gesso.engine.request import Sequence
from gesso.model.cache import KVCache


@dataclass(frozen=True)
class Work:
    """One sequence's part of a pass: pieces of its text, its canvas, or the former and then the latter."""

    sequence: Sequence
    texts: tuple[tuple[int, ...], ...]
    denoise: bool


@dataclass
class Row:
    """What a row of the cache holds: tokens, of which the first `whole` came in prompt pieces of full length."""

    tokens: list[int] = field(default_factory=list)
    whole: int = 0


class Scheduler:
    def __init__(self, max_batch: int, prefill: int, piece: int) -> None:
        self.prefill, self.piece = prefill, piece
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.rows = [Row() for _ in range(max_batch)]

    def admit(self, cache: KVCache) -> Sequence | None:
        """Give the longest-waiting request the free row that holds most of its prompt already; None: no row is free."""
        busy = {sequence.row for sequence in self.running}
        free = [row for row in range(len(self.rows)) if row not in busy]
        if not self.waiting or not free:
            return None
        sequence = self.waiting.popleft()
        sequence.row = max(free, key=lambda row: (self.reusable(row, sequence.request.prompt, cache), -row))
        self.running.append(sequence)
        return sequence

    def plan(self) -> list[Work]:
        """Every canvas that is ready takes a step; prompts share the room for text, the oldest request first."""
        work, room = [], self.prefill
        for sequence in self.running:
            texts: list[tuple[int, ...]] = []
            for text in sequence.pending:
                reading = len(sequence.request.prompt) - len(self.rows[sequence.row].tokens) - sum(map(len, texts))
                if reading > 0:
                    # A pass ends with the last whole piece, where the cache is saved for the next turn.
                    if len(text) > room or (texts and len(text) < self.piece):
                        break
                    room -= len(text)
                texts.append(text)
            denoise = len(texts) == len(sequence.pending)
            if texts or denoise:
                work.append(Work(sequence, tuple(texts), denoise))
        return work

    def remove(self, sequence: Sequence) -> None:
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def reusable(self, row: int, prompt: tuple[int, ...], cache: KVCache) -> int:
        """How many tokens of the prompt can be taken over as they would be computed anew: whole pieces only."""
        held = self.rows[row]
        limit = min(held.whole, len(prompt))
        common = next((i for i in range(limit) if held.tokens[i] != prompt[i]), limit)
        cuts = range(common - common % self.piece, 0, -self.piece)
        return next((cut for cut in cuts if cache.can_cut(row, cut)), 0)
