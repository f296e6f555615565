"""Find the most likely text that matches a constraint.

A canvas is written at all positions at once, so the most likely tokens of two positions may not fit together. At each
step this module finds the most likely token sequence that the automaton accepts, by dynamic programming over position
and state (the idea of DINGO, arXiv 2505.23061). At each position it considers the moves of a state and, if many words
can follow the state, the most likely words of the position. It keeps the best `BEAM` states of a position. With at most
`BEAM` states that few words can follow, the result is exact.

Texts of different length are compared over the whole canvas. After its end a text continues as in training, with the
end of text or padding, and the probability of these tokens counts. If all tokens were allowed after the end, the
shortest text would win wherever the model is uncertain.

C positions, K most likely tokens, S states, M moves of a state, N states kept, W wide states among them, U codes of
moves, L bytes of a word, O words that are not plain.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gesso.constraints.automaton import DEAD, END, FREE, START
from gesso.constraints.budget import Pauses, complete, repeated
from gesso.constraints.guide import ANY_TOKEN, FILLING, Guide, Ints
from gesso.constraints.reach import Reach

BEAM = 16  # states kept at a position

SLACK = 1e-3  # of sums of scores, for rounding
PINNED = -(1 << 30)  # the code of a pinned token in a trail

Floats = NDArray[np.float32]
Found = tuple[Ints, int]  # tokens, and the index from which any other tokens would be valid too


class Scores:
    """The scores of some tokens at every position. The score of a text is their sum."""

    def __init__(
        self, tokens_CK: Ints, top_CK: Floats, fill_C: Ints, filling_C: Floats, ask: Callable[[Ints], Floats]
    ) -> None:
        """`fill_C`: the most likely of the tokens that fill a canvas after the end of the text; `filling_C`: its score.

        `ask` returns the scores [C, n] of other tokens. A search calls it for tokens it meets that have no scores yet.
        """
        self.tokens_CK = tokens_CK
        self.top_CK = top_CK
        self.fill_C = fill_C
        self._ask = ask
        self._by_code_CU = np.stack([top_CK[:, 0], filling_C], axis=1)  # ANY_TOKEN is the most likely token
        # The sums from each position on: of the most likely tokens, which no text exceeds, and of filling tokens.
        self.rest = [np.append(scores_C[::-1].cumsum()[::-1], 0) for scores_C in (top_CK[:, 0], filling_C)]

    def of_moves(self, position: int, code_NM: NDArray[np.int32], tokens: Sequence[int]) -> Floats:
        """Return the scores at a position of moves, given by their codes. `tokens` has the token of each code."""
        scored = self._by_code_CU.shape[1]
        if code_NM.max(initial=0) >= scored:
            missing_CU = self._ask(np.array(tokens[scored:], np.int64))
            self._by_code_CU = np.concatenate([self._by_code_CU, missing_CU], axis=1)
        return self._by_code_CU[position].take(code_NM)


class _Words(NamedTuple):
    """The most likely words of a position."""

    bytes_LK: Ints
    odd_LO: Ints  # the bytes of the words that are not plain
    plain_K: NDArray[np.bool_]
    ends_K: NDArray[np.bool_]  # whether it ends the text
    none_K: NDArray[np.bool_]  # whether it writes nothing


def likeliest(reach: Reach, start: int, position: int, scores: Scores) -> Found:
    """Return the tokens with the highest score that may follow a state at a position of the text."""
    return complete(search(reach, start, position, scores))


def search(reach: Reach, start: int, position: int, scores: Scores) -> Pauses[Found]:
    """Search as `likeliest` does, and pause before every position. In a block of `pausing`, also pause between states.

    Other searches with the same guide may run in between: they can only add states.
    """
    guide = reach.guide
    length, width = scores.tokens_CK.shape
    words = _LikelyWords(guide, scores.tokens_CK)
    rest_best, rest_fill = scores.rest
    at = np.array([start])  # the states kept
    total = np.zeros(1, np.float32)  # the score of the best text to each of them
    best = np.full(0, -np.inf, np.float32)  # by state
    owner = np.zeros(0, np.int64)  # by state
    trail: list[tuple[Ints, Ints]] = []
    for i in range(length):
        yield None
        targets = yield from repeated(partial(_targets, reach, words, scores, position, i, at, total))
        code_NM = targets.code_NM
        # Keep the best move to each target, and the best `BEAM` of these.
        moves = targets.allowed  # indices of the moves that are still considered
        score = targets.score.take(moves)
        key = targets.target.take(moves)
        if len(best) < len(guide.automaton):
            best = np.full(2 * len(guide.automaton), -np.inf, np.float32)
            owner = np.zeros(len(best), np.int64)
        np.maximum.at(best, key, score)
        winner = (score == best.take(key)).nonzero()[0]
        best[key] = -np.inf
        key = key.take(winner)
        owner[key] = winner
        winner = winner[owner.take(key) == winner]  # one of several with the same score
        if len(winner) > BEAM:
            winner = winner.take((-score.take(winner)).argpartition(BEAM)[:BEAM])
        moves = moves.take(winner)
        came = moves // code_NM.shape[1]
        code = code_NM.take(moves, mode="clip")
        by_word = (moves >= code_NM.size).nonzero()[0]
        if len(by_word):
            state, word = np.divmod(moves[by_word] - code_NM.size, width)
            came[by_word] = targets.wide.take(state)
            code[by_word] = -1 - word
        at = targets.target.take(moves)
        total = score.take(winner)
        ended = at < START
        if ended.any() and position + i >= reach.last:
            # A text that has ended or become free has a known score. Drop the states that cannot reach it any more.
            final = np.where(at == END, total + rest_fill[i + 1], total + rest_best[i + 1])
            hopeful = (final >= final[ended].max() - SLACK).nonzero()[0]
            at = at.take(hopeful)
            total = total.take(hopeful)
            came = came.take(hopeful)
            code = code.take(hopeful)
        trail.append((came, code))
        if len(at) == 1 and at[0] < START and position + i >= reach.last:
            break
    last = int(total.argmax())
    after_end_C = scores.tokens_CK[:, 0] if at[last] == FREE else scores.fill_C
    return _follow(trail, last, scores, reach, position, after_end_C)


class _Targets(NamedTuple):
    """Where the moves of some states lead, and then the most likely words of the wide ones among them."""

    code_NM: NDArray[np.int32]
    wide: Ints  # indices of the wide states
    target: Ints
    score: Floats
    allowed: Ints  # indices of the targets from which the text can still be completed


def _targets(
    reach: Reach, words: "_LikelyWords", scores: Scores, position: int, i: int, at: Ints, total: Floats
) -> _Targets:
    guide, moves = reach.guide, reach.moves
    wide: Ints = np.zeros(0, np.int64)
    pin = reach.pins.get(position + i)
    if pin is not None:
        code_NM = np.full((len(at), 1), PINNED, np.int32)
        target = guide.walk_from(at, pin)
        score = total
    else:
        moves.fill(at)
        code_NM = moves.code_SM.take(at, axis=0)
        target = moves.next_SM.take(at, axis=0).ravel().astype(np.int64)
        score = (scores.of_moves(i, code_NM, moves.tokens) + total[:, None]).ravel()
        wide = moves.wide_S.take(at).nonzero()[0]
        if len(wide):
            target_WK = _after_words(guide, at.take(wide), words.at(i))
            score_WK = scores.top_CK[i] + total.take(wide)[:, None]
            target = np.concatenate([target, target_WK.ravel()])
            score = np.concatenate([score, score_WK.ravel()])
    allowed = reach.allows(position + i + 1, target).nonzero()[0]
    return _Targets(code_NM=code_NM, wide=wide, target=target, score=score, allowed=allowed)


def _follow(
    trail: list[tuple[Ints, Ints]], at: int, scores: Scores, reach: Reach, position: int, after_end_C: Ints
) -> Found:
    """Return the tokens of the trail that ends at `at`, and those of `after_end_C` after its end."""
    tokens_C = after_end_C.copy()
    tokens = reach.moves.tokens
    free = len(trail)
    for i in range(len(trail) - 1, -1, -1):
        came, code = trail[i]
        chosen, at = int(code[at]), int(came[at])
        if chosen == PINNED:
            tokens_C[i] = reach.pins[position + i]
        elif chosen < 0:
            tokens_C[i] = scores.tokens_CK[i, -1 - chosen]
        elif chosen == ANY_TOKEN:
            free = i
            tokens_C[i] = scores.tokens_CK[i, 0]
        elif chosen == FILLING:
            tokens_C[i] = scores.fill_C[i]
        else:
            tokens_C[i] = tokens[chosen]
    return tokens_C, free


class _LikelyWords:
    """The most likely words of each position."""

    def __init__(self, guide: Guide, tokens_CK: Ints) -> None:
        self._length_CK = guide.words.length_V[tokens_CK]
        self._plain_CK = guide.words.plain_V[tokens_CK]
        self._bytes_CKL = guide.words.bytes_VL[tokens_CK]
        self._ends_CK = np.isin(tokens_CK, list(guide.eos))

    def at(self, i: int) -> _Words:
        """Return the words of a position."""
        length_K = self._length_CK[i]
        plain_K = self._plain_CK[i]
        bytes_LK = self._bytes_CKL[i].T
        odd = (~plain_K).nonzero()[0]
        longest = length_K.max(initial=0)
        longest_odd = length_K.take(odd).max(initial=0)
        return _Words(
            bytes_LK=bytes_LK[:longest],
            odd_LO=bytes_LK[:longest_odd, odd],
            plain_K=plain_K,
            ends_K=self._ends_CK[i],
            none_K=length_K == 0,
        )


def _after_words(guide: Guide, at_W: Ints, words: _Words) -> Ints:
    """Return the states [W, K] after each of some words, from each of some states."""
    guide.automaton.fill(at_W)
    if guide.automaton.loops_S.take(at_W).all():  # as in a string of any length: plain words keep the state
        state_WK = np.repeat(at_W[:, None], len(words.plain_K), axis=1)
        if words.odd_LO.size:
            state_WK[:, ~words.plain_K] = guide.walk_all(at_W, words.odd_LO)
    else:
        state_WK = guide.walk_all(at_W, words.bytes_LK)
    state_WK[:, words.none_K] = DEAD
    if words.ends_K.any():
        state_WK[:, words.ends_K] = np.where(guide.automaton.accepting_S[at_W], END, DEAD)[:, None]
    return state_WK
