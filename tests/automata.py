"""Test which texts match a regular expression, and sample texts that match."""

import random
from collections import deque

from gesso.constraints.compiler import compiled


class Texts:
    """The texts that an expression matches as a whole."""

    def __init__(self, regex: str) -> None:
        moves, accepting = compiled(regex)
        self.start, self.accepting = 1, set(accepting)
        self.edges: dict[int, dict[int, int]] = {1: {}}
        for state, byte, target in moves:
            self.edges.setdefault(state, {})[byte] = target
            self.edges.setdefault(target, {})
        self.left = self._distances()
        self.states = len(self.edges)

    def _distances(self) -> dict[int, int]:
        back: dict[int, list[int]] = {}
        for state, row in self.edges.items():
            for target in row.values():
                back.setdefault(target, []).append(state)
        left = dict.fromkeys(self.accepting, 0)
        waiting = deque(self.accepting)
        while waiting:
            state = waiting.popleft()
            for source in back.get(state, ()):
                if source not in left:
                    left[source] = left[state] + 1
                    waiting.append(source)
        return left

    def has(self, text: str) -> bool:
        state = self.start
        for byte in text.encode():
            if byte not in self.edges[state]:
                return False
            state = self.edges[state][byte]
        return state in self.accepting

    def sample(self, rng: random.Random, length: int = 60) -> str:
        """Return the text of a random walk that heads for the nearest end after at most `length` bytes."""
        state, text = self.start, bytearray()
        stop = rng.randint(1, length)
        while True:
            moves = sorted((b, t) for b, t in self.edges[state].items() if t in self.left)
            if state in self.accepting and (not moves or len(text) >= stop or rng.random() < 0.1):
                return text.decode()
            if len(text) >= stop:
                nearest = min(self.left[t] for _, t in moves)
                moves = [(b, t) for b, t in moves if self.left[t] == nearest]
            # Choose the target first: otherwise a letter is nearly always chosen over a quote.
            target = rng.choice(sorted({t for _, t in moves}))
            byte = rng.choice([b for b, t in moves if t == target])
            text.append(byte)
            state = target
