"""Measure how long an engine works on hostile constraints without a pause, while other requests wait.

    python -m benchmarks.host_work

Each constraint is compiled in a child process, as a server does. It is then restored, and corrects random predictions
in parts, as the engine does between the launches of passes. The table has CPU time in milliseconds: of restoring and
checking, which a side thread of the engine does, and of the longest part of a search, which others wait for.
Linux only.
"""

import argparse
import os
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.schemas import guides
from gesso.constraints.automaton import START
from gesso.constraints.budget import pausing
from gesso.constraints.guide import Guide
from gesso.constraints.reach import Reach
from gesso.constraints.search import Scores, search
from gesso.constraints.stored import to_bytes
from gesso.errors import InputError
from gesso.serve.collecting import take_over
from tools.hostile_cases import Case, cases

PASS_SECONDS = 0.002  # in which the searches beside a pass are asked to stop
TOKENS, LIKELY, STEPS = 64, 16, 10
MOST_SECONDS = 5.0  # of the search for one constraint


@dataclass
class Work:
    """CPU time in seconds. `end` is the reason for a refusal, or empty."""

    kind: str
    prepare: float = 0.0
    longest: float = 0.0
    parts: int = 0
    awaited: int = 0  # parts that ended because a row is made in another thread
    states: int = 0
    end: str = ""


def compiled(case: Case) -> bytes | None:
    """Compile a constraint in a child process; None if it is refused."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            guide = guides().guide(**{case[1]: case[2]})
            assert guide is not None
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(to_bytes(guide.automaton.term))
        except (InputError, RecursionError):
            pass
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found = pipe.read()
    os.wait()
    return found or None


def measured(number: int, case: Case, data: bytes) -> Work:
    """Restore a constraint, and correct random predictions under it."""
    work, began = Work(case[0]), time.thread_time()
    try:
        guide = guides().restored(str(number), data, tools=False)
        reach = Reach(guide, {}, TOKENS)
        reach.check()
    except InputError as error:
        work.end = str(error)
    work.prepare = time.thread_time() - began
    if work.end:
        return work
    chosen = np.random.default_rng(number)
    finish = time.monotonic() + MOST_SECONDS
    try:
        for _ in range(STEPS):
            _correct(reach, random_scores(chosen, guide), work)
            if time.monotonic() > finish:
                break
    except InputError as error:
        work.end = str(error)
    work.states = len(guide.automaton)
    return work


def _correct(reach: Reach, scores: Scores, work: Work) -> None:
    parts, is_done = search(reach, START, 0, scores), False
    while not is_done:
        awaited, began = None, time.thread_time()
        try:
            with pausing(lambda began=began: time.thread_time() - began > PASS_SECONDS):  # type: ignore[misc]
                awaited = next(parts)
        except StopIteration:
            is_done = True
        finally:
            work.longest, work.parts = max(work.longest, time.thread_time() - began), work.parts + 1
        if awaited is not None:
            work.awaited += 1
            awaited.exception()  # waits for it


def random_scores(chosen: np.random.Generator, guide: Guide) -> Scores:
    """Return random most likely tokens; tokens that a search asks for are less likely."""
    vocab_size = guide.words.vocab_size
    tokens_CK = np.stack([chosen.choice(vocab_size, LIKELY, replace=False) for _ in range(TOKENS)]).astype(np.int64)
    top_CK = -np.sort(chosen.exponential(3, (TOKENS, LIKELY)), axis=1).astype(np.float32)
    worst, slope = np.float32(-9), np.arange(1, TOKENS + 1)[:, None] * 1e-3

    def ask(tokens_U: np.ndarray) -> np.ndarray:
        return (worst + tokens_U[None, :] % 997 * slope / 64).astype(np.float32)

    fill_C = np.full(TOKENS, min(guide.eos | guide.padding), np.int64)
    return Scores(tokens_CK, top_CK - top_CK[:, :1], fill_C, np.full(TOKENS, worst, np.float32), ask)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=58)
    parser.add_argument("--seed", type=int, default=2)
    asked = parser.parse_args()
    guides().warm_up(searches=True)
    stored = [(case, compiled(case)) for case in cases(asked.count, asked.seed)]
    take_over()  # as in an engine process
    found = [measured(number, case, data) for number, (case, data) in enumerate(stored) if data is not None]
    print(
        "| constraint | restore and check | longest part | parts | rows awaited | states | end |\n" + "|---" * 7 + "|"
    )
    for work in sorted(found, key=lambda one: -one.longest):
        times = f"{1000 * work.prepare:.0f} | {1000 * work.longest:.1f}"
        print(f"| {work.kind} | {times} | {work.parts} | {work.awaited} | {work.states} | {work.end[:60]} |")


if __name__ == "__main__":
    main()
