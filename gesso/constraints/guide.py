"""A compiled constraint: the moves of tokens through its automaton, and the number of tokens left to the end.

A whole vocabulary has too many moves to consider them all. If few words can follow a state, all of them are considered.
Otherwise only one word is: the next one of a shortest text to the end, so that the text can always be completed.
`search` adds the most likely words of each position.

Like the states, these tables are computed when a text reaches a state, and kept.

S states, M moves of a state, W starting states, K words, L bytes of a word.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from gesso.constraints.automaton import DEAD, END, FREE, START, STAY, Automaton
from gesso.constraints.budget import holding, pause_if_over
from gesso.constraints.term import FAR
from gesso.constraints.words import LONGEST, Words
from gesso.errors import InputError

FEW = 24  # if at most so many words can follow a state, all are considered
CACHED_STEPS = 1 << 17
ANY_TOKEN, FILLING = 0, 1  # codes of moves that no token names: any token, and one that fills the canvas after the end
# Limits on `every_move`:
MAX_PINNED_STATES = 20_000
MAX_WALKS = 1 << 25  # words walked from all wide states together
MAX_MOVES = 1 << 24  # of all states

Ints = NDArray[np.int64]


class Moves:
    """The words considered at each state, whatever the position. Rows are valid for the states given to `fill`."""

    def __init__(self, guide: "Guide", of_wide: Callable[[int], list[tuple[int, int]]]) -> None:
        self._guide = guide
        self._of_wide = of_wide  # returns the moves of a state that many words can follow
        self._lock = RLock()
        self.tokens = [-1, -1]  # by code; the first two codes stand for no certain token
        self._code = dict[int, int]()
        self.code_SM = np.zeros((64, 4), np.int32)
        self.next_SM = np.zeros((64, 4), np.int32)  # DEAD where a state has fewer moves
        self.wide_S = np.zeros(64, np.bool_)  # states that more words can follow
        self.filled_S = np.zeros(64, np.bool_)
        self.filled_S[[DEAD, END, FREE]] = True
        self.code_SM[END, 0] = FILLING
        self.next_SM[END, 0] = END
        self.code_SM[FREE, 0] = ANY_TOKEN
        self.next_SM[FREE, 0] = FREE

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray))

    def fill(self, states: Ints) -> None:
        """Compute the moves of these states where they are missing."""
        if states.max(initial=0) < len(self.filled_S) and self.filled_S.take(states).all():
            return
        for state in dict.fromkeys(states.tolist()):
            with holding(self._lock):
                self._fill(state)

    def _fill(self, state: int) -> None:
        self._reserve(state + 1, 0)
        if self.filled_S[state]:
            return
        guide = self._guide
        targets = guide.words.after(guide.automaton, state, FEW)
        if targets is None:
            self.wide_S[state] = True
            targets = self._of_wide(state)
        if guide.automaton.accepting_S[state]:
            targets = targets + [(token, END) for token in sorted(guide.eos)]
        self._reserve(state + 1, len(targets))
        for move, (token, target) in enumerate(targets):
            if token not in self._code:
                self._code[token] = len(self.tokens)
                self.tokens.append(token)
            self.code_SM[state, move] = self._code[token]
            self.next_SM[state, move] = target
        self.filled_S[state] = True

    def _reserve(self, states: int, moves: int) -> None:
        while len(self.filled_S) < states:
            for name, array in vars(self).items():
                if isinstance(array, np.ndarray):
                    setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        if self.next_SM.shape[1] < moves:
            more = max(moves, 2 * self.next_SM.shape[1]) - self.next_SM.shape[1]
            self.code_SM = np.pad(self.code_SM, ((0, 0), (0, more)))
            self.next_SM = np.pad(self.next_SM, ((0, 0), (0, more)))


class Guide:
    def __init__(
        self,
        automaton: Automaton,
        words: Words,
        eos: frozenset[int],
        padding: frozenset[int] = frozenset(),
        warnings: tuple[str, ...] = (),
        checked: tuple[str, ...] = (),
    ) -> None:
        """Build an empty guide; its tables are computed when a text reaches a state.

        `padding`: tokens that fill a canvas after the end, in addition to `eos`. `warnings` and `checked` are those of
        `CompiledConstraint`.
        """
        self.automaton = automaton
        self.words = words
        self.eos = eos
        self.padding = padding
        self.warnings = warnings
        self.checked = checked
        self._lock = RLock()
        self._left_S = np.full(64, -1, np.int64)
        self._token_S = np.full(64, -1, np.int64)
        self._left_S[[DEAD, END, FREE]] = FAR, 0, 0
        if not words.writes_all_bytes and self.shortest >= FAR:
            raise InputError(
                "the shortest text that satisfies the constraint contains bytes that no token of this model writes; "
                "use other characters"
            )

    @property
    def nbytes(self) -> int:
        """The size of the tables computed so far, without those of the vocabulary."""
        moves = [value for value in vars(self).values() if isinstance(value, Moves)]
        return self.automaton.nbytes + sum(table.nbytes for table in moves)

    # --- walking --------------------------------------------------------------------------------------------------

    def walk(self, state: int, tokens: Sequence[int]) -> int:
        """Return the state after some tokens; DEAD if the constraint forbids them."""
        step = self._cached_step
        for token in tokens:
            if state < START:
                return state
            state = step(state, token)
        return state

    def walk_from(self, states: Ints, token: int) -> Ints:
        """Return the states after one token, from each of some states."""
        word = self.words.bytes_of.get(token)
        at = states
        if token in self.eos:
            at = np.where(self.automaton.accepting_S[at], END, DEAD)
        elif word is None:
            at = np.full_like(at, DEAD)
        else:
            for byte in word:
                self.automaton.fill(at)
                at = self.automaton.next_SB[at, byte].astype(np.int64)
        return np.where((states == END) | (states == FREE), states, at)

    def walk_all(self, at_W: Ints, bytes_LK: Ints) -> Ints:
        """Return the states [W, K] after each of K words, given byte by byte [L, K], from each of W states.

        The starting states are repeated for every word, so that words of no bytes (L = 0) still have K columns.
        """
        automaton = self.automaton
        state_WK = np.repeat(at_W[:, None], bytes_LK.shape[1], axis=1)
        for byte_K in bytes_LK:
            automaton.fill(state_WK)
            state_WK = automaton.next_SB.ravel().take(state_WK * (STAY + 1) + byte_K).astype(np.int64)
        return state_WK

    def may_end(self, state: int) -> bool:
        return bool(self.automaton.accepting_S[state])

    @cached_property
    def _cached_step(self) -> Callable[[int, int], int]:
        """`_step` with a bounded cache: a guide may be in use for months, and a vocabulary is large."""
        return lru_cache(maxsize=CACHED_STEPS)(self._step)

    def _step(self, state: int, token: int) -> int:
        return int(self.walk_from(np.array([state]), token)[0])

    # --- tokens left to the end -----------------------------------------------------------------------------------

    @cached_property
    def shortest(self) -> int:
        """An upper bound on the tokens of a shortest text."""
        return self.tokens_left(START)

    def tokens_left(self, state: int) -> int:
        """Return the number of tokens that complete the text with the fewest bytes."""
        if state >= len(self._left_S) or self._left_S[state] < 0:
            with holding(self._lock):
                self._measure(state)
            pause_if_over()
        return int(self._left_S[state])

    def fits(self, states: Ints, most: int) -> NDArray[np.bool_]:
        """Return for each state whether at most `most` tokens complete the text."""
        bytes_left = self.automaton.bytes_left_S.take(states)
        near = bytes_left <= most  # then a text has at most as many tokens as bytes
        if not self.words.writes_all_bytes:
            near = np.zeros_like(near)
        elif near.all():
            return near
        for i in (~near & (bytes_left <= most * LONGEST)).nonzero()[0].tolist():
            near[i] = self.tokens_left(int(states[i])) <= most
        return near

    def _measure(self, state: int) -> None:
        """Store the tokens left from a state on the path with the fewest bytes, and the next token of that path."""
        automaton = self.automaton
        path, text = [state], bytearray()
        measured = 0  # states at the end of the path whose tokens left are known
        while measured <= LONGEST:
            at = path[-1]
            automaton.row(at)
            byte = int(automaton.shortest_S[at])
            if byte == STAY:
                break
            measured += at < len(self._left_S) and self._left_S[at] >= 0
            text.append(byte)
            path.append(automaton.next(at, byte))
        while len(self._left_S) < len(automaton):
            self._left_S = np.concatenate([self._left_S, np.full_like(self._left_S, -1)])
            self._token_S = np.concatenate([self._token_S, np.full_like(self._token_S, -1)])
        left = self._left_S
        for i in range(len(path) - 1, -1, -1):
            if left[path[i]] >= 0:
                continue
            best, token = (0, -1) if automaton.accepting_S[path[i]] else (FAR, -1)
            for size in range(1, min(LONGEST, len(text) - i) + 1) if best else ():
                word = bytes(text[i : i + size])
                if word in self.words.token_of and left[path[i + size]] + 1 <= best:  # on a tie, the longer word
                    best = int(left[path[i + size]]) + 1
                    token = self.words.token_of[word]
            left[path[i]] = min(best, FAR)
            self._token_S[path[i]] = token

    # --- words considered at each state ---------------------------------------------------------------------------

    @cached_property
    def moves(self) -> Moves:
        """All words of states that few words can follow; the next word of a shortest text for the others."""

        def shortest(state: int) -> list[tuple[int, int]]:
            with holding(self._lock):
                self._measure(state)
                token = int(self._token_S[state])
            return [] if token < 0 else [(token, self._step(state, token))]

        return Moves(self, shortest)

    @cached_property
    def every_move(self) -> Moves:
        """Like `moves`, but of all states, and with a word to each state that any word reaches. Pins need them all."""
        if not self.automaton.fill_all(MAX_PINNED_STATES):
            raise _too_large(f"its automaton has more than {MAX_PINNED_STATES:,} states")
        states = np.arange(len(self.automaton))
        self.moves.fill(states)
        wide = int(self.moves.wide_S.sum())
        if wide * len(self.words.token_of) > MAX_WALKS:
            raise _too_large(f"{wide:,} states of its automaton can be followed by many words")
        moves = Moves(self, lambda state: self.words.targets(self.automaton, state))
        moves.fill(states)
        if moves.next_SM.size > MAX_MOVES:
            most = moves.next_SM.shape[1]
            raise _too_large(f"its automaton has {len(states):,} states with up to {most:,} moves each")
        return moves


def _too_large(reason: str) -> InputError:
    return InputError(
        f"the constraint is too large to be combined with pins ({reason}); write the pinned text into the constraint"
    )
