"""`make demo`: run the examples. All run in one process, because importing torch takes longer than an example."""

import argparse
import sys

from examples.demo.commands import EXAMPLES, answer, right_seeds, run

NEXT = """\
Next:
  make studio                see a canvas change step by step, in your browser
  . .venv/bin/activate       then gesso chat: ask "What can you do?", or gesso --help
"""
SEEDS = 10


def demo() -> int:
    """Run the examples and return the exit code of the first that fails."""
    for number, example in enumerate(EXAMPLES, start=1):
        print(f"{number}/{len(EXAMPLES)}  {example.title}\n$ {example.command}", flush=True)
        if code := run(example.command):
            return code
        print(flush=True)
    print(NEXT, end="")
    return 0


def check() -> int:
    """Print for each example whether its answer is right, and which other seeds give it. Return 1 if one is wrong."""
    wrong = 0
    for example in EXAMPLES:
        printed = answer(example.command)
        right = printed == example.answer.strip()
        wrong += not right
        seeds = " ".join(map(str, right_seeds(example, SEEDS)))
        print(f"{'right' if right else 'WRONG'}  {example.command}")
        print(f"       right with seeds {seeds or 'none'}", flush=True)
        if not right:
            print(f"       answer: {printed}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="Run four examples.")
    parser.add_argument("--check", action="store_true", help="check the answers, with other seeds too")
    sys.exit(check() if parser.parse_args().check else demo())
