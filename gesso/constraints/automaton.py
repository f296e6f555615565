"""A deterministic automaton over the bytes of a text, whose states are terms.

States are made when a text reaches them: a schema with counts and recursion has more states than memory, and a text
visits few of them. The row of a state usually takes a fraction of a millisecond. Code that others wait for, which runs
in a block of `pausing`, does not make a slow row: a thread makes it, and the block pauses until it is there.

S states, B bytes.
"""

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from gesso.constraints.budget import (
    Paused,
    TookTooLong,
    at_most,
    check_time,
    give_way_to_passes,
    holding,
    may_pause,
    pause_if_over,
)
from gesso.constraints.limits import Limits
from gesso.constraints.term import FAR, NOTHING, Term
from gesso.constraints.terms import ANYTHING
from gesso.errors import InputError

# DEAD: no text that reaches it can match. From every other state some text leads to a match.
# END: the text has ended. FREE: every text matches from here on.
DEAD, END, FREE, START = range(4)
UNSATISFIABLE = "no text can satisfy this constraint; relax it"
STAY = 256  # a pseudo-byte that keeps the state, so that words of different length can be walked together
PLAIN = b" 0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"  # the bytes of most words
MANY = 4096  # states; beyond it, arrays are allocated for all: copies take long, and unused pages take no memory
PAUSING_SECONDS = 0.004  # of CPU time for a row inside `pausing`; the thread computes slower ones
_NATURAL = sum(1 << byte for byte in PLAIN if byte != 0x20)


class Automaton:
    """The states reached so far. Rows of `next_SB` are valid after `fill`; arrays have spare capacity.

    Several threads may use one automaton: a caller prepares a request while the engine runs another.
    """

    def __init__(
        self,
        term: Term,
        limits: Limits = Limits(),  # noqa: B008 (immutable)
        pausing_seconds: float = PAUSING_SECONDS,
    ) -> None:
        self.limits = limits
        self.pausing_seconds = pausing_seconds
        self._lock = RLock()
        self._seconds = 0.0  # of CPU time spent on rows
        self.next_SB = np.zeros((64, STAY + 1), np.int32)  # the last column keeps the state
        self.accepting_S = np.zeros(64, np.bool_)
        self.bytes_left_S = np.zeros(64, np.int64)  # the length of a shortest text to the end
        self.shortest_S = np.full(64, STAY, np.int32)  # the next byte of that text; STAY at its end
        self.loops_S = np.zeros(64, np.bool_)  # whether plain bytes keep the state
        self.filled_S = np.zeros(64, np.bool_)
        self._terms: list[Term] = [NOTHING, NOTHING, ANYTHING, term]
        self._state_of = {ANYTHING: FREE}
        self._slow: dict[int, Future[None]] = {}  # rows that the thread computes or has computed, by state
        self.filled_S[[DEAD, END, FREE]] = True
        self.accepting_S[[END, FREE]] = True
        self.next_SB[FREE] = FREE
        self.next_SB[: START + 1, STAY] = range(START + 1)
        self.bytes_left_S[DEAD] = FAR
        if term.least >= FAR:
            raise InputError(UNSATISFIABLE)
        self._state_of.setdefault(term, START)
        self.bytes_left_S[START] = term.least
        self.accepting_S[START] = term.nullable

    @property
    def term(self) -> Term:
        return self._terms[START]

    def __len__(self) -> int:
        return len(self._terms)

    @property
    def nbytes(self) -> int:
        used = max(len(self), MANY)
        return sum(array[:used].nbytes for array in vars(self).values() if isinstance(array, np.ndarray))

    def fill(self, states: NDArray[np.int64]) -> None:
        """Compute the rows of these states where they are missing."""
        missing = ~self.filled_S.take(states)
        if missing.any():
            for state in dict.fromkeys(states[missing].tolist()):
                self._fill(state)

    def fill_all(self, most: int) -> bool:
        """Compute all rows. Return whether there are at most `most` states; stop if there are more."""
        state = START
        while state < len(self) <= most:
            if not self.filled_S[state]:
                self._fill(state)
            state += 1
        return len(self) <= most

    def row(self, state: int) -> NDArray[np.int32]:
        """Return the next state for each byte."""
        if not self.filled_S[state]:
            self._fill(state)
        return self.next_SB[state, :STAY]

    def next(self, state: int, byte: int) -> int:
        if not self.filled_S[state]:
            self._fill(state)
        return int(self.next_SB[state, byte])

    def walk(self, state: int, text: Iterable[int]) -> int:
        for byte in text:
            state = self.next(state, byte)
            if state == DEAD:
                break
        return state

    def matches(self, text: bytes) -> bool:
        state = self.walk(START, text)  # which may replace the arrays
        return bool(self.accepting_S[state])

    def _fill(self, state: int) -> None:
        if not may_pause():
            self._make(state, self.limits.row_seconds)
            return
        if state not in self._slow:
            try:
                self._make(state, min(self.pausing_seconds, self.limits.row_seconds))
            except TookTooLong:
                self._slow[state] = _thread().submit(self._make, state, self.limits.row_seconds)
        slow = self._slow.get(state)
        if slow is not None:
            if not slow.done():
                raise Paused(slow)
            error = slow.exception()
            if isinstance(error, InputError):
                raise InputError(str(error))  # a new one: the traceback of a stored error grows with each raise
            if error is not None:
                raise error
        pause_if_over()

    def _make(self, state: int, seconds: float) -> None:
        """Compute the row of a state within `seconds` of CPU time."""
        began = time.thread_time()
        try:
            with holding(self._lock), at_most(self.limits.row_terms, seconds):
                check_time()
                if not self.filled_S[state]:  # by another thread
                    self._fill_row(state)
        finally:
            self._seconds += time.thread_time() - began
        if self._seconds > self.limits.seconds + self.limits.state_seconds * len(self):
            raise InputError(
                f"the states of the constraint take more than {1000 * self.limits.state_seconds:g} ms each to compute "
                "(limits.state_seconds); simplify its patterns"
            )

    def _fill_row(self, state: int) -> None:
        term = self._terms[state]
        nearer = 0  # the bytes that begin a shortest text
        for mask in sorted(term.masks):
            target = self._state(term.after((mask & -mask).bit_length() - 1))
            if target == DEAD:
                continue
            inside = np.unpackbits(np.frombuffer(mask.to_bytes(32, "little"), np.uint8), bitorder="little").view(bool)
            self.next_SB[state, :STAY][inside] = target
            if self.bytes_left_S[target] == self.bytes_left_S[state] - 1:
                nearer |= mask
        self.next_SB[state, STAY] = state
        if nearer:  # letters and digits are the more natural text
            nearer = nearer & _NATURAL or nearer
            self.shortest_S[state] = (nearer & -nearer).bit_length() - 1
        self.loops_S[state] = (self.next_SB[state, list(PLAIN)] == state).all()
        self.filled_S[state] = True

    def _state(self, term: Term) -> int:
        """Return the state of a term. Add it if it is new."""
        state = self._state_of.get(term)
        if state is not None:
            return state
        if term.least >= FAR:
            self._state_of[term] = DEAD
            return DEAD
        state = len(self._terms)
        if state >= self.limits.states:
            raise InputError(
                f"the text reaches more than {self.limits.states:,} states of the constraint (limits.states); "
                "simplify its patterns, or shorten the answer"
            )
        if state == len(self.next_SB):
            self._reserve(2 * state if state < MANY else max(2 * state, self.limits.states))
        self._terms.append(term)
        self._state_of[term] = state
        self.accepting_S[state] = term.nullable
        self.bytes_left_S[state] = term.least
        return state

    def _reserve(self, states: int) -> None:
        """Grow the arrays to a number of states."""
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                larger = np.zeros((states, *array.shape[1:]), array.dtype)
                larger[: len(array)] = array
                setattr(self, name, larger)
        self.shortest_S[len(self) :] = STAY


@cache
def _thread() -> ThreadPoolExecutor:
    """Return the thread that computes slow rows."""
    return ThreadPoolExecutor(1, "gesso-rows", give_way_to_passes)
