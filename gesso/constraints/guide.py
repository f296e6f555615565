"""A compiled constraint: the moves of tokens through its automaton, and the number of tokens left to the end.

A whole vocabulary has too many moves to consider them all. If few words can follow a state, all of them are considered.
Otherwise one word is: the next one of a shortest text to the end, so that the text can always be completed. `search`
adds the most likely words of each position.

S states, M moves of a state, U tokens of all moves, W starting states, K words, L bytes of a word.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from gesso.constraints.automaton import DEAD, FAR, START, STAY, Automaton
from gesso.constraints.words import PLAIN, Words
from gesso.errors import InputError

FEW = 24  # if at most so many words can follow a state, all are considered
CACHED_STEPS = 1 << 17
# Limits on `every_move`:
MAX_WALKS = 1 << 25  # words walked from all wide states together
MAX_MOVES = 1 << 24  # of all states

Ints = NDArray[np.int64]


class Moves(NamedTuple):
    """The words considered at each state, whatever the position."""

    tokens_U: Ints
    which_SM: NDArray[np.int32]  # index into tokens_U; len(tokens_U) is any token, len(tokens_U) + 1 a filling token
    next_SM: NDArray[np.int32]  # DEAD where a state has fewer moves
    wide_S: NDArray[np.bool_]  # states that more words can follow


@dataclass(frozen=True, eq=False)
class Guide:
    """The states of an automaton and two more: `end` and `free`."""

    automaton: Automaton
    words: Words
    eos: frozenset[int]
    padding: frozenset[int] = frozenset()  # tokens that fill a canvas after the end of the text, besides `eos`

    def __post_init__(self) -> None:
        if self.automaton.bytes_left_S[START] < FAR <= self.tokens_left_S[START]:
            raise InputError(
                "the shortest text that satisfies the constraint has bytes that no token of this vocabulary writes; "
                "use other characters"
            )

    # --- transfer to another process ------------------------------------------------------------------------------

    def to_bytes(self, *, pinned: bool) -> bytes:
        """Serialize the automaton and its derived tables, which take long to compute.

        `pinned` includes the tables that only requests with pins need.
        """
        arrays = {"next_SB": self.automaton.next_SB, "accepting_S": self.automaton.accepting_S}
        arrays |= {"left_S": self._shortest[0], "token_S": self._shortest[1]}
        for name in ("moves", "every_move") if pinned else ("moves",):
            arrays |= {f"{name}.{field}": array for field, array in getattr(self, name)._asdict().items()}
        out = io.BytesIO()
        np.savez_compressed(out, allow_pickle=False, **arrays)
        return out.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, words: Words, eos: frozenset[int], padding: frozenset[int]) -> Self:
        guide = object.__new__(cls)  # __init__ would compute the tables again
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            automaton = Automaton(arrays["next_SB"], arrays["accepting_S"])
            guide.__dict__.update(automaton=automaton, words=words, eos=eos, padding=padding)
            guide.__dict__["_shortest"] = arrays["left_S"], arrays["token_S"]
            for name in ("moves", "every_move"):
                if f"{name}.tokens_U" in arrays:
                    guide.__dict__[name] = Moves(*(arrays[f"{name}.{field}"] for field in Moves._fields))
        return guide

    @property
    def end(self) -> int:
        """The state after the end of the text, in which a canvas is filled up."""
        return len(self.automaton)

    @property
    def free(self) -> int:
        """The state from which every text matches."""
        return len(self.automaton) + 1

    @property
    def nbytes(self) -> int:
        """The size of the tables computed so far, without those of the vocabulary."""
        found = [*vars(self.automaton).values()]
        for value in [*vars(self).values()]:
            found += value if isinstance(value, tuple) else [value]
        return sum(array.nbytes for array in found if isinstance(array, np.ndarray))

    # --- walking --------------------------------------------------------------------------------------------------

    def walk(self, state: int, tokens: Sequence[int]) -> int:
        """Return the state after some tokens; DEAD if the constraint forbids them."""
        end, step = self.end, self._cached_step
        for token in tokens:
            if state == DEAD or state >= end:
                return state
            state = step(state, token)
        return state

    def walk_from(self, states: Ints, token: int) -> Ints:
        """Return the states after one token, from each of some states."""
        word = self.words.bytes_of.get(token)
        at = np.where(states < self.end, states, DEAD)
        if token in self.eos:
            at = np.where(self.automaton.accepting_S[at], self.end, DEAD)
        elif word is None:
            at = np.full_like(at, DEAD)
        else:
            for byte in word:
                at = self.automaton.next_SB[at, byte].astype(np.int64)
            at = self.landing_S.take(at)
        return np.where(states >= self.end, states, at)

    def walk_all(self, at_W: Ints, bytes_LK: Ints) -> Ints:
        """Return the states [W, K] after each of K words, given byte by byte [L, K], from each of W states.

        The starting states are repeated for every word, so that words of no bytes (L = 0) still have K columns.
        """
        state_WK = np.repeat(at_W[:, None] * (STAY + 1), bytes_LK.shape[1], axis=1)
        for byte_K in bytes_LK:
            state_WK = self._offsets.take(state_WK + byte_K)
        return self.landing_S.take(state_WK // (STAY + 1))

    def may_end(self, state: int) -> bool:
        return state >= self.end or bool(self.automaton.accepting_S[state])

    @cached_property
    def landing_S(self) -> Ints:
        """`free` for states of the automaton from which every text matches, and the state itself for others."""
        automaton, at_S = self.automaton, np.arange(len(self.automaton))
        free_S = (automaton.next_SB[:, :STAY] == at_S[:, None]).all(axis=1) & automaton.accepting_S
        return np.where(free_S, self.free, at_S)

    @cached_property
    def loops_S(self) -> NDArray[np.bool_]:
        """Whether plain bytes keep the state."""
        size = len(self.automaton)
        loops_S = (self.automaton.next_SB[:, list(PLAIN)] == np.arange(size)[:, None]).all(axis=1)
        return np.append(loops_S, [False, False])

    @cached_property
    def _cached_step(self) -> Callable[[int, int], int]:
        """`_step` with a bounded cache: a guide may be in use for months, and a vocabulary is large."""
        return lru_cache(maxsize=CACHED_STEPS)(self._step)

    def _step(self, state: int, token: int) -> int:
        return int(self.walk_from(np.array([state]), token)[0])

    @cached_property
    def _offsets(self) -> Ints:
        """The flat table of the automaton, with states as offsets into it."""
        return self.automaton.next_SB.reshape(-1).astype(np.int64) * (STAY + 1)

    # --- tokens left to the end -----------------------------------------------------------------------------------

    @property
    def tokens_left_S(self) -> NDArray[np.int32]:
        """The number of tokens that complete the text with the fewest bytes; also for `end` and `free`."""
        return self._shortest[0]

    @property
    def shortest(self) -> int:
        """An upper bound on the tokens of a shortest text."""
        return int(self.tokens_left_S[START])

    @cached_property
    def _shortest(self) -> tuple[NDArray[np.int32], Ints]:
        """Tokens left from each state on the path with the fewest bytes, and the next token of that path."""
        automaton, longest = self.automaton, max(map(len, self.words.token_of), default=0)
        left = np.full(len(automaton) + 2, FAR, np.int32)
        token = np.full(len(automaton) + 2, -1, np.int64)
        left[[self.end, self.free]] = 0
        left[:-2][automaton.accepting_S] = 0
        for state in np.argsort(automaton.bytes_left_S, kind="stable").tolist():
            if left[state] == 0 or automaton.bytes_left_S[state] >= FAR:
                continue
            at, word = state, b""
            while len(word) < longest and (byte := int(automaton.shortest_S[at])) != STAY:
                word, at = word + bytes([byte]), int(automaton.next_SB[at, byte])
                if word in self.words.token_of and left[at] + 1 <= left[state]:  # on a tie, the longer word
                    left[state], token[state] = left[at] + 1, self.words.token_of[word]
        left[DEAD] = FAR
        return left, token

    # --- words considered at each state ---------------------------------------------------------------------------

    @cached_property
    def moves(self) -> Moves:
        """All words of states that few words can follow; the next word of a shortest text for the others."""

        def shortest(state: int) -> list[tuple[int, int]]:
            token = int(self._shortest[1][state])
            return [] if token < 0 else [(token, self._step(state, token))]

        return self._moves(shortest)

    @cached_property
    def every_move(self) -> Moves:
        """Like `moves`, but with a word to each state that any word reaches. A text with pins needs all of them."""
        wide = int(self.moves.wide_S.sum())
        if wide * len(self.words.token_of) > MAX_WALKS:
            raise _too_large(f"{wide:,} states of its automaton can be followed by many words")
        return self._moves(lambda state: self.words.targets(self.automaton, state))

    def _moves(self, of_wide: Callable[[int], list[tuple[int, int]]]) -> Moves:
        automaton, ends = self.automaton, sorted(self.eos)
        lists: list[list[tuple[int, int]]] = []
        wide_S = np.zeros(len(automaton) + 2, np.bool_)
        for state in range(len(automaton)):
            found = self.words.after(automaton, state, FEW) if state != DEAD else []
            if found is None:
                wide_S[state], found = True, of_wide(state)
            if automaton.accepting_S[state]:
                found = found + [(token, self.end) for token in ends]
            lists.append(found)
        tokens_U = np.unique([token for found in lists for token, _ in found]).astype(np.int64)
        shape = len(lists) + 2, max(map(len, lists))
        if shape[0] * shape[1] > MAX_MOVES:
            raise _too_large(f"its automaton has {shape[0]:,} states with up to {shape[1]:,} moves each")
        which_SM = np.zeros(shape, np.int32)
        next_SM = np.zeros(shape, np.int32)
        for state, found in enumerate(lists):
            if found:
                tokens, targets = zip(*found, strict=True)
                which_SM[state, : len(found)] = np.searchsorted(tokens_U, tokens)
                next_SM[state, : len(found)] = targets
        next_SM = np.append(self.landing_S, [self.end, self.free]).astype(np.int32)[next_SM]
        which_SM[self.free, 0], next_SM[self.free, 0] = len(tokens_U), self.free
        which_SM[self.end, 0], next_SM[self.end, 0] = len(tokens_U) + 1, self.end
        return Moves(tokens_U, which_SM, next_SM, wide_S)


def _too_large(reason: str) -> InputError:
    return InputError(
        f"the constraint is too large to be combined with pins ({reason}); write the pinned text into the constraint"
    )
