"""Regular expression to automaton, as a program of its own: stdin to stdout, so that a limit can end it.

Some expressions have automata of exponential size, and the library that builds them asks nobody before it does. The
arguments are the most states and the most bytes of memory. What is written: an .npz of `edges` [E, 3] (state, byte,
next state; numbered from 1 on, 1 is where it starts) and `accepting`. Imports nothing of the package, to start fast.
"""

import contextlib
import io
import itertools
import sys

import numpy as np
from outlines_core import Index, Vocabulary

END = 256  # the token that stands for the end of the text
# `outlines-core` drops ways that lead on from an accepting state through one that is not (0.2.14: "(ab)*" takes no
# second "ab"). So we compile the expression and a NUL after it: where a NUL leads to the end, the expression may end.
LAST = 0
VOCABULARY = Vocabulary(END, {bytes([byte]): [byte] for byte in range(256)})


def main() -> None:
    states, memory = map(int, sys.argv[1:])
    with contextlib.suppress(ImportError):  # Windows has no such limit; the caller's time limit holds there too
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    expression = sys.stdin.buffer.read().decode("utf-8")
    try:
        if min(itertools.accumulate((c == "(") - (c == ")") for c in expression), default=0) < 0:
            Index(expression, VOCABULARY)  # by itself: put between ours, the brackets of "a)(b" would be balanced
        index = Index(f"(?:{expression}\n)\\x00" if "(?x" in expression else f"(?:{expression})\\x00", VOCABULARY)
    except ValueError as error:
        sys.exit(f"invalid: {error}")
    transitions = index.get_transitions()
    if len(transitions) > states:
        sys.exit(f"states: {len(transitions)}")
    finals = index.get_final_states()
    order = dict.fromkeys((index.get_initial_state(), *transitions, *finals))
    number = {state: n for n, state in enumerate(order, 1)}
    edges = [
        (number[state], byte, number[target])
        for state, moves in transitions.items()
        for byte, target in moves.items()
        if byte != END
    ]
    accepting = [number[state] for state, moves in transitions.items() if moves.get(LAST) in finals]
    out = io.BytesIO()
    np.savez(out, edges=np.array(edges, np.int32).reshape(-1, 3), accepting=np.array(accepting, np.int32))
    sys.stdout.buffer.write(out.getvalue())


if __name__ == "__main__":
    main()
