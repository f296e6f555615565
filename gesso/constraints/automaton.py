"""A deterministic automaton over the bytes of a text, compiled from a regular expression.

Expressions have the syntax of Rust's `regex` crate: Unicode, no look-around, no back-references. `outlines-core`
compiles them. It is the one library for constrained text that exposes its automaton, which a search over states needs:
`llguidance` and `xgrammar` return only the tokens that may come next. Here its vocabulary is the 256 bytes, so its
automaton is one over bytes. With 262,144 tokens it would take seconds and gigabytes.

S states, B bytes, E edges.
"""

import io
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gesso.constraints.limits import Limits
from gesso.errors import InputError

DEAD, START = 0, 1
STAY = 256  # a pseudo-byte that keeps the state, so that words of different length can be walked side by side
FAR = np.int32(1 << 30)
COMPILER = Path(__file__).with_name("compiler.py")
OUT_OF_TIME = -getattr(signal, "SIGXCPU", 999)  # exit status; Windows has no such signal
WALL_PER_CPU_SECOND = 4  # real time allowed per second of CPU time, for machines with other work
UNSATISFIABLE = "no text can satisfy this constraint; relax it"

Edges = tuple[NDArray[np.int32], NDArray[np.int32]]  # edges [E, 3] and accepting states, as in `compiler`


@dataclass(frozen=True, eq=False)
class Automaton:
    """State 0 is dead: no text that reaches it can match. From every other state some text leads to a match."""

    next_SB: NDArray[np.int32]  # [S, 257]; the last column is STAY
    accepting_S: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.next_SB)

    @cached_property
    def bytes_left_S(self) -> NDArray[np.int32]:
        """The length in bytes of a shortest path to an accepting state."""
        return _distances(self.next_SB, self.accepting_S)

    @cached_property
    def shortest_S(self) -> NDArray[np.int32]:
        """The next byte of a shortest path to an accepting state; STAY at its end."""
        found_S = np.full(len(self), STAY, np.int32)
        nearest_S = self.bytes_left_S[self.next_SB[:, :STAY]].argmin(axis=1)
        moving_S = (self.bytes_left_S > 0) & (self.bytes_left_S < FAR)
        found_S[moving_S] = nearest_S[moving_S]
        return found_S

    def marked(self, marks: Mapping[str, int]) -> "Automaton":
        """Replace characters that stand for special tokens by single bytes that occur in no text.

        Otherwise a model that writes single bytes could spell these characters.
        """
        next_SB = self.next_SB.copy()
        for char, byte in marks.items():
            at_S = np.arange(len(self))
            for part in char.encode():
                before_S, at_S = at_S, self.next_SB[at_S, part]
            next_SB[:, byte] = at_S
            next_SB[before_S[before_S != DEAD], char.encode()[-1]] = DEAD
        return Automaton(next_SB, self.accepting_S)

    def row(self, state: int) -> NDArray[np.int32]:
        """Return the next state for each byte."""
        return self.next_SB[state, :STAY]

    def walk(self, state: int, text: bytes) -> int:
        for byte in text:
            state = int(self.next_SB[state, byte])
            if state == DEAD:
                break
        return state

    def matches(self, text: bytes) -> bool:
        return bool(self.accepting_S[self.walk(START, text)])


def beginning(text: bytes) -> Automaton:
    """Return the automaton of all texts that begin with `text`."""
    size = len(text) + 2
    next_SB = np.zeros((size, STAY + 1), np.int32)
    next_SB[np.arange(START, size - 1), list(text)] = np.arange(START + 1, size)
    next_SB[-1] = size - 1
    next_SB[:, STAY] = np.arange(size)
    accepting_S = np.zeros(size, np.bool_)
    accepting_S[-1] = True
    return Automaton(next_SB, accepting_S)


def compile_regex(expression: str, limits: Limits = Limits(), *, apart: bool = True) -> Automaton:  # noqa: B008 (immutable)
    """Return the automaton of the texts that an expression matches as a whole.

    Some expressions take exponential time or memory. So a child process compiles them, and the limits can end it. A
    caller that runs under such limits itself compiles in place with `apart=False`.
    """
    if len(expression) > limits.regex_chars:
        raise InputError(
            f"the constraint is too large: a regular expression of {len(expression):,} characters; "
            f"at most {limits.regex_chars:,} are allowed (limits.regex_chars)"
        )
    automaton = _build(*(_compiled_apart if apart else _compiled_here)(expression, limits))
    if automaton.bytes_left_S[START] >= FAR:
        raise InputError(UNSATISFIABLE)
    return automaton


def _compiled_apart(expression: str, limits: Limits) -> Edges:
    too_long = InputError(
        f"the constraint took more than {limits.seconds:g} s to compile (limits.seconds); simplify it, "
        "for instance with smaller repetition counts"
    )
    try:
        found = subprocess.run(
            [sys.executable, "-P", str(COMPILER), str(limits.states), str(limits.memory), str(ceil(limits.seconds))],
            input=expression.encode(),
            capture_output=True,
            timeout=WALL_PER_CPU_SECOND * limits.seconds,
        )
    except UnicodeEncodeError as error:
        raise InputError(f"the regular expression is not text that UTF-8 can encode: {error}") from None
    except subprocess.TimeoutExpired:
        raise too_long from None
    if found.returncode == OUT_OF_TIME:
        raise too_long
    if found.returncode:
        raise _compile_error(found.stderr.decode("utf-8", "replace"), limits)
    with np.load(io.BytesIO(found.stdout), allow_pickle=False) as arrays:
        return arrays["edges"], arrays["accepting"]


def _compiled_here(expression: str, limits: Limits) -> Edges:
    from gesso.constraints import compiler

    try:
        return compiler.arrays(expression, limits.states)
    except ValueError as error:
        raise _compile_error(str(error), limits) from None


def _compile_error(error: str, limits: Limits) -> InputError:
    """Translate the last line of the compiler's output."""
    last = error.strip().splitlines()[-1] if error.strip() else "it was ended for using too much memory"
    kind, _, detail = last.partition(": ")
    if kind == "states":
        return InputError(
            f"the constraint is too large: its automaton has {int(detail):,} states; at most {limits.states:,} are "
            "allowed (limits.states); use smaller repetition counts or fewer alternatives"
        )
    if kind == "invalid" and "incompatible with the regex" in detail:
        return InputError(UNSATISFIABLE)
    if kind == "invalid":
        return InputError(
            f"the regular expression cannot be compiled ({detail}); use the syntax of Rust's regex crate, "
            "which has no look-around and no back-references"
        )
    return InputError(f"the constraint could not be compiled within {limits.memory >> 20} MiB (limits.memory): {last}")


def _build(edges_E3: NDArray[np.int32], accepting: NDArray[np.int32]) -> Automaton:
    size = int(max(edges_E3[:, ::2].max(initial=START), accepting.max(initial=START))) + 1
    next_SB = np.zeros((size, STAY + 1), np.int32)
    next_SB[edges_E3[:, 0], edges_E3[:, 1]] = edges_E3[:, 2]
    accepting_S = np.zeros(size, np.bool_)
    accepting_S[accepting] = True
    useful_S = _distances(next_SB, accepting_S) < FAR
    next_SB[~useful_S[next_SB]] = DEAD
    next_SB[:, STAY] = np.arange(size)
    return Automaton(next_SB, accepting_S)


def _distances(next_SB: NDArray[np.int32], accepting_S: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the steps to the nearest accepting state, by backward breadth-first search over the distinct edges."""
    size = len(next_SB)
    code = np.unique(next_SB[:, :STAY].astype(np.int64) * size + np.arange(size)[:, None])
    target, source = code // size, code % size
    starts = np.searchsorted(target, np.arange(size + 1))
    left = np.full(size, FAR, np.int32)
    left[accepting_S] = 0
    left[DEAD] = FAR
    frontier, steps = np.flatnonzero(left == 0), 0
    while len(frontier):
        steps += 1
        near = np.unique(np.concatenate([source[starts[s] : starts[s + 1]] for s in frontier]))
        frontier = near[(left[near] == FAR) & (near != DEAD)]
        left[frontier] = steps
    return left
