"""Compile hostile constraints, walk a few hundred bytes through each, and report time and memory.

    python -m tools.hostile_constraints --count 1000

Every case runs in a child process of its own, which is measured and ended at its limits. It must be compiled, or
refused with an InputError. Linux only.
"""

import argparse
import json
import os
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.schemas import guides
from gesso.constraints.automaton import DEAD, START
from gesso.constraints.guide import Guide
from gesso.errors import InputError
from tools.hostile_cases import Case, cases

# What each case should keep: Limits.seconds for compiling, as much for the states on the way, and the start.
SECONDS, MEMORY = 7.0, 500 * 2**20
END_SECONDS, END_MEMORY = 20, 4 * 2**30  # at which it is ended
WALKS, WALK_BYTES = 3, 300


@dataclass(frozen=True)
class Verdict:
    """`end` is compiled, refused, refused on the way (while walking), or the name of an error."""

    case: Case
    end: str
    message: str
    seconds: float  # of CPU time, with that of its own child processes
    memory: int  # bytes more than before

    @property
    def within_limits(self) -> bool:
        known = self.end in ("compiled", "refused", "refused on the way")
        return known and self.seconds <= SECONDS and self.memory <= MEMORY


def judged(case: Case) -> Verdict:
    """Compile and walk one case in a child process."""
    guides()  # so that children share the vocabulary's tables
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _in_child(case, writer)
    os.close(writer)
    with os.fdopen(reader) as answers:
        answer = answers.read()
    _, status, used = os.wait4(child, 0)
    end, message = json.loads(answer) if answer else (f"ended with status {status}", "")
    return Verdict(case, end, message, used.ru_utime + used.ru_stime, max(used.ru_maxrss * 1024 - before, 0))


def _in_child(case: Case, writer: int) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (END_SECONDS, END_SECONDS))
        resource.setrlimit(resource.RLIMIT_DATA, (END_MEMORY, END_MEMORY))
        signal.alarm(10 * END_SECONDS)
        os.write(writer, json.dumps(_end_of(case)).encode())
    finally:
        os._exit(0)  # nothing of the parent's is to be cleaned up


def _end_of(case: Case) -> tuple[str, str]:
    _, argument, value = case
    try:
        guide = guides().guide(**{argument: value})
    except InputError as error:
        return "refused", str(error)
    except BaseException as error:
        return type(error).__name__, str(error)[:500]
    assert guide is not None
    try:
        for seed in range(WALKS):
            walk(guide, random.Random(seed))
    except InputError as error:
        return "refused on the way", str(error)
    except BaseException as error:
        return f"{type(error).__name__} on the way", str(error)[:500]
    return "compiled", ""


def walk(guide: Guide, rng: random.Random, length: int = WALK_BYTES) -> None:
    """Take a random path of at most `length` bytes through the automaton."""
    state = START
    for _ in range(length):
        row_B = guide.automaton.row(state)
        targets = np.unique(row_B[row_B != DEAD])
        if not len(targets):
            return
        state = int(targets[rng.randrange(len(targets))])


# --- report -----------------------------------------------------------------------------------------------------------


def report(verdicts: Sequence[Verdict]) -> str:
    """Return a table by kind."""
    lines = ["| kind | cases | compiled | refused | other | slowest s | most MB |", "|---" * 7 + "|"]
    for kind in [*dict.fromkeys(verdict.case[0] for verdict in verdicts), "all"]:
        some = [verdict for verdict in verdicts if kind in (verdict.case[0], "all")]
        ends = Counter(verdict.end for verdict in some)
        refused = ends["refused"] + ends["refused on the way"]
        cells = (
            kind, len(some), ends["compiled"], refused, len(some) - ends["compiled"] - refused,
            f"{max(verdict.seconds for verdict in some):.2f}",
            f"{max(verdict.memory for verdict in some) / 2**20:.0f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def complaint(number: int, verdict: Verdict) -> str:
    """Return one line about a case outside the limits."""
    kind, _, value = verdict.case
    return (
        f"outside the limits: case {number}, {kind}: {verdict.end}, {verdict.seconds:.2f} s, "
        f"{verdict.memory / 2**20:.0f} MB: {verdict.message[:120]!r}: {_shown(value)}"
    )


def _shown(value: Any) -> str:
    try:
        return repr(value)[:200]
    except RecursionError:
        return "(nested too deeply to be shown)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    verdicts = []
    for number, case in enumerate(cases(arguments.count, arguments.seed)):
        verdicts.append(judged(case))
        if sys.stderr.isatty():
            print(f"\r{number + 1} of {arguments.count} ", end="", file=sys.stderr, flush=True)
        if not verdicts[-1].within_limits:
            print(complaint(number, verdicts[-1]), flush=True)
    print(report(verdicts))
    return 0 if all(verdict.within_limits for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
