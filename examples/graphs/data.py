"""Write training rows: questions of the train split, each with a graph that answers it.

    python -m examples.graphs.data --out data/graphs
    python -m examples.graphs.data --out data/graphs --count 500000 --processes 16

The rows do not depend on the number of processes. All levels have equally many.
"""

import argparse
import json
import lzma
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from examples.graphs.task import Graphs

COUNT = 600_000
PART = 100  # rows per piece of work


def part(seed: int, number: int) -> str:
    """Return one piece of the rows as JSON lines."""
    items = Graphs().items("train", PART, seed * 1_000_000 + number)
    return "".join(json.dumps({"prompt": item.prompt, "completion": item.expected}) + "\n" for item in items)


def parts(count: int, seed: int, processes: int) -> Iterator[str]:
    """Yield all pieces in order."""
    numbers = range(count // PART)
    if processes == 1:
        yield from map(partial(part, seed), numbers)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(partial(part, seed), numbers, chunksize=10)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a directory, for train.jsonl.xz")
    parser.add_argument("--count", type=int, default=COUNT, help=f"number of rows; {COUNT:,} by default")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same rows")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args(arguments)
    if asked.count < PART or asked.count % PART:
        sys.exit(f"--count must be a multiple of {PART}, got {asked.count}")
    asked.out.mkdir(parents=True, exist_ok=True)
    target = asked.out / "train.jsonl.xz"
    # The file gets its name when it is complete. A higher preset would take longer than drawing the graphs.
    with lzma.open(asked.out / "train.part", "wt", preset=1) as file:
        for done, rows in enumerate(parts(asked.count, asked.seed, asked.processes), start=1):
            file.write(rows)
            print(f"\r{done * PART:,} of {asked.count:,} rows", end="", file=sys.stderr)
    (asked.out / "train.part").replace(target)
    print(f"\r{asked.count:,} rows in {target}", file=sys.stderr)


if __name__ == "__main__":
    main()
