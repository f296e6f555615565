"""`python -m examples.demo.check`: check the answers of `gesso demo`, and show which other seeds give them."""

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace

from gesso.cli.main import main
from gesso.demo import EXAMPLES, DemoExample

SEEDS = 10


def check(examples: Sequence[DemoExample] = EXAMPLES) -> int:
    """Print for each example whether its answer is right, and which seeds give it. Return 1 if one is wrong."""
    wrong = 0
    for example in examples:
        printed = answer(example)
        right = printed == example.answer.strip()
        wrong += not right
        seeds = " ".join(map(str, right_seeds(example, SEEDS)))
        print(f"{'right' if right else 'WRONG'}  {example.command}")
        print(f"       right with seeds {seeds or 'none'}", flush=True)
        if not right:
            print(f"       answer: {printed}", flush=True)
    return int(wrong > 0)


def answer(example: DemoExample) -> str:
    """Return what the command of an example prints on stdout."""
    stdin = sys.stdin
    sys.stdin = io.StringIO(example.stdin)
    try:
        with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()):
            main(example.words)
    finally:
        sys.stdin = stdin
    return printed.getvalue().strip()


def right_seeds(example: DemoExample, count: int) -> list[int]:
    """Return the seeds below `count` that give the right answer."""
    return [seed for seed in range(count) if answer(replace(example, seed=seed)) == example.answer.strip()]


if __name__ == "__main__":
    sys.exit(check())
