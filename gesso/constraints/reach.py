"""The states from which a text can still be completed with the tokens left and the pins.

S states, M moves of a state.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gesso.constraints.automaton import DEAD, END, START
from gesso.constraints.guide import Guide, Ints
from gesso.errors import InputError

MANY_BYTES = 10_000  # of a text too long to count its tokens
MAX_WORK = 1 << 28  # moves examined, of all positions up to the last pin


class Reach:
    """One request: a text of up to `length` tokens, with `pins` at some positions, that follows a guide."""

    def __init__(self, guide: Guide, pins: Mapping[int, int], length: int, max_work: int = MAX_WORK) -> None:
        self.guide = guide
        self.pins = pins
        self.length = length
        self.last = max(pins, default=-1)  # the position of the last pin
        self.moves = guide.every_move if pins else guide.moves
        if self.moves.next_SM.size * (self.last + 1) > max_work:
            raise InputError(
                f"the constraint is too large to be combined with a pin at position {self.last}; "
                "write the pinned text into the constraint"
            )
        self._possible = self._backward()

    def check(self) -> None:
        """Raise InputError if no text has these pins, or none that is short enough."""
        if self.allows(0, np.array([START]))[0]:
            return
        if not self.pins:
            least = int(self.guide.automaton.bytes_left_S[START])
            needs = f"has {least:,} bytes" if least > MANY_BYTES else f"needs {self.guide.shortest} tokens"
            raise InputError(
                f"the constraint cannot be satisfied within max_new_tokens={self.length}: the shortest answer {needs}"
            )
        at_S = np.zeros(len(self.guide.automaton), np.bool_)
        at_S[START] = True
        for position in range(self.last + 1):
            at_S = self._forward(position, at_S)
            if not at_S.any():
                pin = min(place for place in self.pins if place >= position)
                before = " and the pins before it" if pin > min(self.pins) else ""
                raise InputError(
                    f"the pin {self.pins[pin]} at position {pin} is not possible under the constraint{before}; "
                    "change the pin or the constraint"
                )
        raise InputError(
            f"the constraint and the pins cannot both be satisfied within max_new_tokens={self.length}; raise it"
        )

    def allows(self, position: int, states: Ints) -> NDArray[np.bool_]:
        """Return for each state before a position whether the text can be completed."""
        if position > self.last:
            return self.guide.fits(states, self.length - position)
        return self._possible[position].take(states)

    def fits(self, position: int, state: int, tokens: Sequence[int]) -> bool:
        """Return whether these tokens may follow, from a position on. They include the pins at their positions."""
        split = max(0, self.last - position)
        state = self.guide.walk(state, tokens[:split])
        if split and state == END:  # a text cannot end before the last pin
            return False
        state = self.guide.walk(state, tokens[split:])
        return bool(self.allows(position + len(tokens), np.array([state]))[0])

    def _backward(self) -> list[NDArray[np.bool_]]:
        """Return the possible states before each position up to the last pin."""
        if not self.pins:
            return []
        states = np.arange(len(self.guide.automaton))
        possible_S = self.allows(self.last + 1, states)
        backwards: list[NDArray[np.bool_]] = []
        for position in range(self.last, -1, -1):
            if position in self.pins:
                possible_S = possible_S.take(self.guide.walk_from(states, self.pins[position]))
            else:
                possible_S = np.asarray(possible_S.take(self.moves.next_SM[: len(states)]).any(axis=1))
            possible_S[[DEAD, END]] = False
            backwards.append(possible_S)
        return backwards[::-1]

    def _forward(self, position: int, at_S: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the states reachable after a position from any of some states before it."""
        at = at_S.nonzero()[0]
        if position in self.pins:
            target = self.guide.walk_from(at, self.pins[position])
        else:
            target = self.moves.next_SM[at].ravel().astype(np.int64)
        reached_S = np.zeros_like(at_S)
        reached_S[target] = True
        reached_S[DEAD] = False
        if position < self.last:
            reached_S[END] = False
        return reached_S
