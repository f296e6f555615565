"""Who runs in the next pass: which requests have a row of the cache, and how much text each may encode."""

from collections import deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from gesso.engine.request import Sequence
from gesso.model.cache import KVCache


@dataclass(frozen=True)
class Work:
    """One sequence's part of a pass: a piece of its text, its canvas, or the one and then the other."""

    sequence: Sequence
    text: tuple[int, ...]
    denoise: bool


class Scheduler:
    def __init__(self, max_batch: int, prefill_chunk: int) -> None:
        self.max_batch, self.prefill_chunk = max_batch, prefill_chunk
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.held: dict[int, list[int]] = {}  # tokens whose keys and values each row of the cache holds

    def admit(self, cache: KVCache) -> Sequence | None:
        """Give the longest-waiting request the free row that holds most of its prompt already; None: no row is free."""
        if not self.waiting or len(self.running) == self.max_batch:
            return None
        sequence = self.waiting.popleft()
        busy = {other.row for other in self.running}
        free = [row for row in range(self.max_batch) if row not in busy]
        reusable = {row: self._reusable(row, sequence.request.prompt, cache) for row in free}
        sequence.row = max(free, key=lambda row: (reusable[row], -row))
        self.held[sequence.row] = self.held.get(sequence.row, [])[: reusable[sequence.row]]
        self.running.append(sequence)
        return sequence

    def plan(self) -> list[Work]:
        """Every canvas that is ready takes a step; prompts are read one chunk a pass, the oldest request first."""
        work, prompt_room = [], self.prefill_chunk
        for sequence in self.running:
            text = sequence.pending[0] if sequence.pending else ()
            is_prompt = len(self.held[sequence.row]) < len(sequence.request.prompt)
            if text and is_prompt:
                if len(text) > prompt_room:
                    continue
                prompt_room -= len(text)
            work.append(Work(sequence, text, denoise=len(sequence.pending) <= 1))
        return work

    def remove(self, sequence: Sequence) -> None:
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def _reusable(self, row: int, prompt: Tokens[int], cache: KVCache) -> int:
        held = self.held.get(row, [])
        limit = min(len(held), len(prompt))
        common = next((i for i in range(limit) if held[i] != prompt[i]), limit)
        return common if held and cache.can_truncate(row, common) else 0
