"""Compile the kernels for every card, and write the table and its page: `python -m tools.cards`.

The installed version of Triton compiles; results of other versions stay. `--card` compiles some cards only, and
`--processes` that many at once. Kernels that have not changed since the table was made are not compiled again.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tools.cards.page import PAGE, render
from tools.cards.table import COMPILED, ROOT, Table

CRASHES = 20  # of the compiler, for one card


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", action="append", choices=COMPILED)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=ROOT / "data" / "cards")
    options = parser.parse_args()
    with ThreadPoolExecutor(options.processes) as threads:
        files = list(threads.map(partial(_compile, directory=options.results), options.card or COMPILED))
    table = Table.read()
    for file in files:
        table.add(json.loads(file.read_text()))
    table.write()
    PAGE.write_text(render(table))
    return 0


def _compile(card: str, directory: Path) -> Path:
    """Compile the kernels for one card in a process of its own, and return the file with the results."""
    import triton

    file = directory / triton.__version__ / f"{card}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    for _ in range(CRASHES):
        done = subprocess.run([sys.executable, "-m", "tools.cards.compile", card, str(file)], env=environment, cwd=ROOT)
        if done.returncode >= 0:
            done.check_returncode()
            return file.with_suffix(".json")
    raise RuntimeError(f"the compiler ended its process {CRASHES} times for {card}; see {file}")


if __name__ == "__main__":
    sys.exit(main())
