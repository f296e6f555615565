"""A constraint on the text of one request, and the likeliest text that keeps to it.

A canvas is written at all positions at once, so what is likeliest at each of them need not fit together. At every
step we look for the likeliest token sequence that the automaton can walk, by dynamic programming over position and
state (the idea of DINGO, arXiv 2505.23061). A whole vocabulary has too many moves for that. Where few words can follow,
all of them are considered; elsewhere the likeliest words of the position are, together with the next word of a shortest
way to the end, so that there always is a way. Of the states reached at a position the best `BEAM` are kept: up to so
many states, and where few words can follow, the result is exact.

C positions, K likeliest tokens, S states, M moves of a state, N states kept, W of them wide, U tokens that moves have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gesso.guide.automaton import DEAD, FAR, START, STAY, Automaton
from gesso.guide.words import PLAIN, Words

BEAM = 16  # states kept at a position
TOP = 16  # likeliest tokens of a position that are considered
FEW = 24  # words: where no more can follow, all are considered

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Moves(NamedTuple):
    """The words considered at each state whatever the position."""

    tokens_U: Ints
    which_SM: Ints  # index into tokens_U
    next_SM: NDArray[np.int32]  # DEAD where a state has fewer moves
    wide_S: NDArray[np.bool_]  # states that more words can follow


class Scores(NamedTuple):
    """What is known of a canvas: how good some tokens are at every position. The scores of a text are added up."""

    tokens_CK: Ints  # the likeliest
    top_CK: Floats
    moves_CU: Floats  # of Moves.tokens_U, and of the likeliest token in the last column


class _Words(NamedTuple):
    """The likeliest words of a position; L bytes."""

    bytes_LK: Ints
    odd_LO: Ints  # of those that are not plain
    plain_K: NDArray[np.bool_]
    ends_K: NDArray[np.bool_]  # that end the text
    none_K: NDArray[np.bool_]  # that write nothing


@dataclass(frozen=True, eq=False)
class Guide:
    automaton: Automaton
    words: Words
    eos: frozenset[int]

    @property
    def end(self) -> int:
        """The state after the end of the text, where every token is allowed and none is read."""
        return len(self.automaton)

    # --- walking ------------------------------------------------------------------------------------------------

    def walk(self, state: int, tokens: Sequence[int]) -> int:
        """The state after some tokens; DEAD if the constraint does not allow them."""
        for token in tokens:
            if state in (DEAD, self.end):
                return state
            moves = self._walked.setdefault(state, {})
            if token not in moves:
                moves[token] = self._next(state, token)
            state = moves[token]
        return state

    def fits(self, state: int, tokens: Sequence[int], after: int) -> bool:
        """Whether a canvas may hold these tokens, when `after` more may follow it."""
        return bool(self.tokens_left_S[self.walk(state, tokens)] <= after)

    def may_end(self, state: int) -> bool:
        return state == self.end or bool(self.automaton.accepting_S[state])

    @cached_property
    def _walked(self) -> dict[int, dict[int, int]]:
        return {}

    def _next(self, state: int, token: int) -> int:
        if token in self.eos:
            return self.end if self.automaton.accepting_S[state] else DEAD
        word = self.words.bytes_of.get(token)
        return DEAD if word is None else self.automaton.walk(state, word)

    # --- how far it is to the end -------------------------------------------------------------------------------

    @cached_property
    def tokens_left_S(self) -> NDArray[np.int32]:
        """How many tokens complete the text, on the way that has the fewest bytes. [S + 1], the end included."""
        return self._ways[0]

    @property
    def shortest(self) -> int:
        """Tokens that a whole text needs at the most when it is kept short."""
        return int(self.tokens_left_S[START])

    @cached_property
    def _ways(self) -> tuple[NDArray[np.int32], Ints]:
        """Tokens left of every state, and the token to go on with."""
        automaton, longest = self.automaton, max(map(len, self.words.token_of), default=0)
        left = np.full(len(automaton) + 1, FAR, np.int32)
        token = np.full(len(automaton) + 1, -1, np.int64)
        left[self.end] = 0
        left[:-1][automaton.accepting_S] = 0
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

    @cached_property
    def moves(self) -> Moves:
        automaton, ends = self.automaton, sorted(self.eos)
        lists: list[list[tuple[int, int]]] = []
        wide_S = np.zeros(len(automaton) + 1, np.bool_)
        for state in range(len(automaton)):
            found = self.words.after(automaton, state, FEW) if state != DEAD else []
            if found is None:
                wide_S[state] = True
                way = int(self._ways[1][state])
                found = [] if way < 0 else [(way, self._next(state, way))]
            if automaton.accepting_S[state]:
                found = found + [(token, self.end) for token in ends]
            lists.append(found)
        tokens_U = np.unique([token for found in lists for token, _ in found]).astype(np.int64)
        lists.append([(-1, self.end)])
        which_SM = np.zeros((len(lists), max(map(len, lists))), np.int64)
        next_SM = np.zeros(which_SM.shape, np.int32)
        for state, found in enumerate(lists):
            if found:
                tokens, targets = zip(*found, strict=True)
                which_SM[state, : len(found)] = np.searchsorted(tokens_U, tokens)
                next_SM[state, : len(found)] = targets
        which_SM[self.end, 0] = len(tokens_U)
        return Moves(tokens_U, which_SM, next_SM, wide_S)

    # --- the search ---------------------------------------------------------------------------------------------

    def best(self, start: int, scores: Scores, after: int) -> Ints:
        """The tokens [C] with the highest sum of scores that fit after a state, when `after` more may follow."""
        length, moves = scores.moves_CU.shape[0], self.moves
        words = self._words_of(scores.tokens_CK)
        at, total = np.array([start]), np.zeros(1, np.float32)
        best, owner = np.full(self.end + 1, -np.inf, np.float32), np.zeros(self.end + 1, np.int64)
        trail: list[tuple[Ints, Ints]] = []
        for position in range(length):
            # Moves of the states themselves, then the likeliest words where many can follow.
            target_NM, code_NM = moves.next_SM.take(at, axis=0), moves.which_SM.take(at, axis=0)
            target, score = target_NM.ravel(), (scores.moves_CU[position].take(code_NM) + total[:, None]).ravel()
            if len(wide := moves.wide_S.take(at).nonzero()[0]):
                target_WK = self._after_words(at.take(wide), words[position])
                score_WK = scores.top_CK[position] + total.take(wide)[:, None]
                target, score = np.concatenate([target, target_WK.ravel()]), np.concatenate([score, score_WK.ravel()])
            # What can still be completed; of several ways to a state the best; of all states the best few.
            kept = (self.tokens_left_S.take(target) <= after + length - 1 - position).nonzero()[0]
            score, key = score.take(kept), target.take(kept)
            np.maximum.at(best, key, score)
            winner = (score == best.take(key)).nonzero()[0]
            best[key] = -np.inf
            key = key.take(winner)
            owner[key] = winner
            winner = winner[owner.take(key) == winner]  # one of equals
            if len(winner) > BEAM:
                winner = winner.take((-score.take(winner)).argpartition(BEAM)[:BEAM])
            kept = kept.take(winner)
            came, code = kept // moves.which_SM.shape[1], code_NM.take(kept, mode="clip")
            if len(words_of := (kept >= code_NM.size).nonzero()[0]):
                state, word = np.divmod(kept[words_of] - code_NM.size, scores.tokens_CK.shape[1])
                came[words_of], code[words_of] = wide.take(state), -1 - word
            trail.append((came, code))
            at, total = target.take(kept), score.take(winner)
            if at[0] == self.end and len(at) == 1:
                break
        return self._follow(trail, int(total.argmax()), scores)

    def _words_of(self, tokens_CK: Ints) -> "list[_Words]":
        """For each position what there is to know of its likeliest words."""
        length_CK, plain_CK = self.words.length_V[tokens_CK], self.words.plain_V[tokens_CK]
        bytes_CLK = np.ascontiguousarray(self.words.bytes_VL[tokens_CK].transpose(0, 2, 1))
        ends_CK = np.isin(tokens_CK, list(self.eos))
        longest_C = length_CK.max(axis=1, initial=0).tolist()
        odd_C = np.where(plain_CK, 0, length_CK).max(axis=1, initial=0).tolist()
        return [
            _Words(bytes_LK[:longest], bytes_LK[:odd, (~plain_K).nonzero()[0]], plain_K, ends_K, length_K == 0)
            for bytes_LK, longest, odd, plain_K, ends_K, length_K in zip(
                bytes_CLK, longest_C, odd_C, plain_CK, ends_CK, length_CK, strict=True
            )
        ]

    def _after_words(self, at_W: Ints, words: "_Words") -> Ints:
        """The states after each of some words, from each of some states."""
        if self._loops_S.take(at_W).all():  # as in a string of any length: a plain word leads nowhere else
            state_WK = np.repeat(at_W[:, None], len(words.plain_K), axis=1)
            if words.odd_LO.size:
                state_WK[:, ~words.plain_K] = self._walk_all(at_W, words.odd_LO)
        else:
            state_WK = self._walk_all(at_W, words.bytes_LK)
        state_WK[:, words.none_K] = DEAD
        if words.ends_K.any():
            state_WK[:, words.ends_K] = np.where(self.automaton.accepting_S[at_W], self.end, DEAD)[:, None]
        return state_WK

    def _walk_all(self, at_W: Ints, bytes_LK: Ints) -> Ints:
        state_WK = at_W[:, None] * (STAY + 1)
        for byte_K in bytes_LK:
            state_WK = self._scaled.take(state_WK + byte_K)
        return state_WK // (STAY + 1)

    @cached_property
    def _loops_S(self) -> NDArray[np.bool_]:
        """The states that plain bytes do not leave."""
        size = len(self.automaton)
        return np.append((self.automaton.next_SB[:, list(PLAIN)] == np.arange(size)[:, None]).all(axis=1), False)

    @cached_property
    def _scaled(self) -> Ints:
        """The automaton's table, flat, with states as offsets into it."""
        return self.automaton.next_SB.reshape(-1).astype(np.int64) * (STAY + 1)

    def _follow(self, trail: list[tuple[Ints, Ints]], at: int, scores: Scores) -> Ints:
        """Back from the best end to the tokens that led there; after it everything is as likely as can be."""
        found_C = scores.tokens_CK[:, 0].copy()
        for position in range(len(trail) - 1, -1, -1):
            came, code = trail[position]
            chosen, at = int(code[at]), int(came[at])
            if chosen < 0:
                found_C[position] = scores.tokens_CK[position, -1 - chosen]
            elif chosen < len(self.moves.tokens_U):
                found_C[position] = self.moves.tokens_U[chosen]
        return found_C
