"""A constraint on the text of one request: how tokens move through its automaton, and how far it is to the end.

A whole vocabulary has too many moves to consider them all. Where few words can follow a state, all of them are
considered; elsewhere the next word of a shortest way to the end, so that there always is a way, and beside it whatever
is likeliest at a position: see `search`.

S states, M moves of a state, U tokens that moves have.
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

FEW = 24  # words: where no more can follow, all are considered
KNOWN = 1 << 17  # moves that are remembered
# Where all moves have to be known:
MOST_WALKS = 1 << 25  # words that are walked from all wide states together
MOST_MOVES = 1 << 24  # of all states

Ints = NDArray[np.int64]


class Moves(NamedTuple):
    """The words considered at each state whatever the position."""

    tokens_U: Ints
    which_SM: NDArray[np.int32]  # index into tokens_U; one more is any token, two more what fills a canvas up
    next_SM: NDArray[np.int32]  # DEAD where a state has fewer moves
    wide_S: NDArray[np.bool_]  # states that more words can follow


@dataclass(frozen=True, eq=False)
class Guide:
    """Its states are those of the automaton, and two more: `end` and `free`."""

    automaton: Automaton
    words: Words
    eos: frozenset[int]
    padding: frozenset[int] = frozenset()  # what a canvas holds after the end of the text, beside `eos`

    def __post_init__(self) -> None:
        if self.automaton.bytes_left_S[START] < FAR <= self.tokens_left_S[START]:
            raise InputError(
                "the shortest text that satisfies the constraint has bytes that no token of this vocabulary writes"
            )

    # --- to another process -------------------------------------------------------------------------------------

    def to_bytes(self, *, pinned: bool) -> bytes:
        """Serialize the automaton and the tables derived from it, which take long to compute.

        `pinned` includes those that only requests with pins need.
        """
        arrays = {"next_SB": self.automaton.next_SB, "accepting_S": self.automaton.accepting_S}
        arrays |= {"left_S": self._ways[0], "token_S": self._ways[1]}
        for name in ("moves", "every_move") if pinned else ("moves",):
            arrays |= {f"{name}.{field}": array for field, array in getattr(self, name)._asdict().items()}
        out = io.BytesIO()
        np.savez_compressed(out, allow_pickle=False, **arrays)
        return out.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, words: Words, eos: frozenset[int], padding: frozenset[int]) -> Self:
        guide = object.__new__(cls)  # not through __init__, which would compute the tables again
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            automaton = Automaton(arrays["next_SB"], arrays["accepting_S"])
            guide.__dict__.update(automaton=automaton, words=words, eos=eos, padding=padding)
            guide.__dict__["_ways"] = arrays["left_S"], arrays["token_S"]
            for name in ("moves", "every_move"):
                if f"{name}.tokens_U" in arrays:
                    guide.__dict__[name] = Moves(*(arrays[f"{name}.{field}"] for field in Moves._fields))
        return guide

    @property
    def end(self) -> int:
        """The state after the end of the text: nothing is read any more, and a canvas is filled up."""
        return len(self.automaton)

    @property
    def free(self) -> int:
        """The state from which every text is right, whatever its tokens."""
        return len(self.automaton) + 1

    @property
    def nbytes(self) -> int:
        """The size of its tables, as far as they have been computed; without those of the vocabulary."""
        found = [*vars(self.automaton).values()]
        for value in [*vars(self).values()]:
            found += value if isinstance(value, tuple) else [value]
        return sum(array.nbytes for array in found if isinstance(array, np.ndarray))

    # --- walking ------------------------------------------------------------------------------------------------

    def walk(self, state: int, tokens: Sequence[int]) -> int:
        """The state after some tokens; DEAD if the constraint does not allow them."""
        end, known = self.end, self._known
        for token in tokens:
            if state == DEAD or state >= end:
                return state
            state = known(state, token)
        return state

    def walk_from(self, states: Ints, token: int) -> Ints:
        """The states after one token, from each of some states."""
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

    def may_end(self, state: int) -> bool:
        return state >= self.end or bool(self.automaton.accepting_S[state])

    @cached_property
    def landing_S(self) -> Ints:
        """Where a walk of the automaton that came to a state has come to: there, or to `free`."""
        automaton, at_S = self.automaton, np.arange(len(self.automaton))
        free_S = (automaton.next_SB[:, :STAY] == at_S[:, None]).all(axis=1) & automaton.accepting_S
        return np.where(free_S, self.free, at_S)

    @cached_property
    def _known(self) -> Callable[[int, int], int]:
        """`_next`, of the moves made lately: a guide may serve for months, and a vocabulary is large."""
        return lru_cache(maxsize=KNOWN)(self._next)

    def _next(self, state: int, token: int) -> int:
        return int(self.walk_from(np.array([state]), token)[0])

    def walk_all(self, at_W: Ints, bytes_LK: Ints) -> Ints:
        """Return the states [W, K] after each of K words, given byte by byte [L, K], from each of W states.

        The starting states are repeated for every word, so that words of no bytes (L = 0) still have K columns.
        """
        state_WK = np.repeat(at_W[:, None] * (STAY + 1), bytes_LK.shape[1], axis=1)
        for byte_K in bytes_LK:
            state_WK = self._scaled.take(state_WK + byte_K)
        return self.landing_S.take(state_WK // (STAY + 1))

    @cached_property
    def loops_S(self) -> NDArray[np.bool_]:
        """The states that plain bytes do not leave."""
        size = len(self.automaton)
        loops_S = (self.automaton.next_SB[:, list(PLAIN)] == np.arange(size)[:, None]).all(axis=1)
        return np.append(loops_S, [False, False])

    @cached_property
    def _scaled(self) -> Ints:
        """The automaton's table, flat, with states as offsets into it."""
        return self.automaton.next_SB.reshape(-1).astype(np.int64) * (STAY + 1)

    # --- how far it is to the end -------------------------------------------------------------------------------

    @cached_property
    def tokens_left_S(self) -> NDArray[np.int32]:
        """How many tokens complete the text, on the way that has the fewest bytes; of `end` and `free`, too."""
        return self._ways[0]

    @property
    def shortest(self) -> int:
        """Tokens that a whole text needs at the most when it is kept short."""
        return int(self.tokens_left_S[START])

    @cached_property
    def _ways(self) -> tuple[NDArray[np.int32], Ints]:
        """Tokens left of every state, and the token to go on with."""
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
                if word in self.words.token_of and left[at] + 1 <= left[state]:  # of equals the longer word
                    left[state], token[state] = left[at] + 1, self.words.token_of[word]
        left[DEAD] = FAR
        return left, token

    # --- which words are considered -----------------------------------------------------------------------------

    @cached_property
    def moves(self) -> Moves:
        """All words where few can follow, elsewhere the next one of a shortest way."""

        def shortest(state: int) -> list[tuple[int, int]]:
            token = int(self._ways[1][state])
            return [] if token < 0 else [(token, self._next(state, token))]

        return self._moves(shortest)

    @cached_property
    def every_move(self) -> Moves:
        """The same, and elsewhere a word to each state that any word leads to: what a text with pins needs to know."""
        wide = int(self.moves.wide_S.sum())
        if wide * len(self.words.token_of) > MOST_WALKS:
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
        if shape[0] * shape[1] > MOST_MOVES:
            raise _too_large(f"its automaton has {shape[0]:,} states with up to {shape[1]:,} ways to go on")
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


def _too_large(why: str) -> InputError:
    return InputError(f"the constraint is too large to be combined with pins ({why}); write the fixed text into it")
