"""Compile a regular expression to an automaton, as a program of its own, so that the caller can limit and end it.

Some expressions have automata of exponential size, and the library builds them without a limit. The program takes the
maximum number of states, of bytes of memory and of seconds of CPU time as arguments. It reads the expression from stdin
and writes an .npz file to stdout: `edges` [E, 3] (state, byte, next state) and `accepting`. States are numbered from 1,
the start state. It imports nothing from the package, so that it starts fast.
"""

import contextlib
import io
import itertools
import sys

import numpy as np
from numpy.typing import NDArray
from outlines_core import Index, Vocabulary

END = 256  # the token for the end of the text
VOCABULARY = Vocabulary(END, {bytes([byte]): [byte] for byte in range(256)})
MARK = b"@start@"
# The library builds the automaton of a search, and drops paths from an accepting state through one that is not
# accepting: "(ab)*" matches no second "ab" (outlines-core 0.2.14). So the expression ends with a NUL, and a text may
# end where a NUL leads to the end. The second, empty alternative is preferred to continuing the search; without it the
# search would start at every byte, which takes exponential memory. The start state is the one after the mark, which
# follows a byte whose path is dropped.
FRAME = "(?:.{mark}(?:{expression})\\x00|)"


def main() -> None:
    states, memory, seconds = map(int, sys.argv[1:])
    with contextlib.suppress(ImportError):  # not on Windows, where only the caller's time limit applies
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    try:
        edges, accepting = arrays(sys.stdin.buffer.read().decode("utf-8"), states)
    except ValueError as error:
        sys.exit(str(error))
    out = io.BytesIO()
    np.savez(out, edges=edges, accepting=accepting)
    sys.stdout.buffer.write(out.getvalue())


def arrays(expression: str, states: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return `edges` and `accepting`, or raise a ValueError that starts with "invalid: " or "states: "."""
    try:
        edges, accepting = compiled(expression)
    except ValueError as error:
        raise ValueError(f"invalid: {error}") from None
    if (count := len({state for state, _, _ in edges})) > states:
        raise ValueError(f"states: {count}")
    return np.array(edges, np.int32).reshape(-1, 3), np.array(accepting, np.int32)


def compiled(expression: str) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Return (state, byte, next state) of every edge, and the accepting states; 1 is the start state."""
    if min(itertools.accumulate((c == "(") - (c == ")") for c in expression), default=0) < 0:
        Index(expression, VOCABULARY)  # raises: inside the frame, the brackets of "a)(b" would be balanced
    if "(?x" in expression:
        expression += "\n"  # ends a comment
    index = Index(FRAME.format(mark=MARK.decode(), expression=expression), VOCABULARY)
    moves, finals = index.get_transitions(), index.get_final_states()
    start = _start(index, moves)
    number, waiting, edges = {start: 1}, [start], []
    while waiting:
        state = waiting.pop()
        for byte, target in moves.get(state, {}).items():
            if byte not in (0, END):
                if target not in number:
                    number[target] = len(number) + 1
                    waiting.append(target)
                edges.append((number[state], byte, number[target]))
    return edges, [number[state] for state in number if moves.get(state, {}).get(0) in finals]


def _start(index: Index, moves: dict[int, dict[int, int]]) -> int:
    entered = {target for row in moves.values() for target in row.values()} | {index.get_initial_state()}
    for state in moves.keys() - entered:
        for byte in MARK:
            # A dropped path through ".*" can spell the mark too, but its states have other edges.
            row = moves.get(state, {})
            state = row[byte] if row.keys() == {byte} else -1
        if state >= 0:
            return state
    raise ValueError("no text matches: incompatible with the regex")


if __name__ == "__main__":
    main()
