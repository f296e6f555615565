"""The automaton of a regular expression over bytes, to look at: which texts match, and some that do."""

import random
from collections import deque
from functools import partial

from outlines_core import Index, Vocabulary

END = 256
_WORD = "@start of the text@"
_BYTES = Vocabulary(END, {bytes([byte]): [byte] for byte in range(256)})


def _walk(edges: dict[int, dict[int, int]], text: bytes, state: int | None) -> int | None:
    for byte in text:
        state = edges[state].get(byte) if state is not None else None
    return state


class Texts:
    """The texts that match an expression as a whole.

    The library looks for a match anywhere, and for the first alternative that matches: `a|ab` never gets to `ab`, and
    what may start anywhere makes an automaton of exponential size. An empty second alternative rules the latter out, a
    mark at the end the former. By the word at the start we find the state that the text itself starts in.
    """

    def __init__(self, regex: str) -> None:
        index = Index(f"(?:.{_WORD}(?:{regex})\\x00|)", _BYTES)
        edges = {s: {b: t for b, t in row.items() if b != END} for s, row in index.get_transitions().items()}
        entered = {t for row in edges.values() for t in row.values()} | {index.get_initial_state()}
        (self.start,) = {s for s in map(partial(_walk, edges, _WORD.encode()), edges.keys() - entered) if s is not None}
        final = index.get_final_states()
        self.accepting = {s for s, row in edges.items() if row.get(0) in final}
        self.edges = {s: {b: t for b, t in row.items() if b} for s, row in edges.items()}
        self.left = self._distances()
        reached, waiting = {self.start}, [self.start]
        while waiting:
            for target in self.edges[waiting.pop()].values():
                if target not in reached:
                    reached.add(target)
                    waiting.append(target)
        self.states = len(reached)

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
        return _walk(self.edges, text.encode(), self.start) in self.accepting

    def sample(self, rng: random.Random, length: int = 60) -> str:
        """A random walk that turns to the nearest end after about `length` bytes."""
        state, text = self.start, bytearray()
        stop = rng.randint(1, length)
        while True:
            moves = sorted((b, t) for b, t in self.edges[state].items() if t in self.left)
            if state in self.accepting and (not moves or len(text) >= stop or rng.random() < 0.1):
                return text.decode()
            if len(text) >= stop:
                nearest = min(self.left[t] for _, t in moves)
                moves = [(b, t) for b, t in moves if self.left[t] == nearest]
            targets = sorted({t for _, t in moves})  # else one of a hundred letters is always chosen over a quote
            target = rng.choice(targets)
            byte = rng.choice([b for b, t in moves if t == target])
            text.append(byte)
            state = target
