"""Write training rows of a task as JSON lines, as `gesso train` reads them.

    python -m examples.rows sudoku --count 16000 --out sudoku-train.jsonl
    python -m examples.rows structured --count 1000 --out structured.jsonl.xz

Without --out, rows go to stdout. The suffix of the file selects its compression.
"""

import argparse
import gzip
import json
import lzma
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from examples.python_infill.small_classes import training_rows as class_rows
from examples.structured.chat import training_rows as chat_rows
from examples.structured.copying import training_rows as copying_rows
from examples.structured.rows import training_rows as structured_rows
from examples.structured.varied import training_rows as varied_rows
from examples.sudoku.rows import training_rows as sudoku_rows
from gesso.errors import InputError
from gesso.eval import PythonInfill
from gesso.files import replacing
from gesso.train.files import LINES


def infill_rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    for item in PythonInfill().items("train", count, seed):
        yield {"prompt": item.prompt, "completion": item.expected}


TASKS = {
    "sudoku": sudoku_rows,
    "structured": structured_rows,
    "varied": varied_rows,
    "copying": copying_rows,
    "chat": chat_rows,
    "python_infill": infill_rows,
    "small_classes": class_rows,
}


def write_rows(rows: Iterable[Mapping[str, Any]], out: Path, *, force: bool = False) -> None:
    """Write rows to a file that appears when it is complete. The same rows give the same bytes."""
    if not out.name.endswith(LINES):
        raise InputError(f"--out {out}: the name must end in {', '.join(LINES)}")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no directory {out.parent}; create it first")
    if out.is_dir() or (out.exists() and not force):
        raise InputError(f"--out {out}: already exists" + ("" if out.is_dir() else "; --force replaces it"))
    with replacing(out) as file, _compressed(file, out.suffix) as compressed:
        for row in rows:
            compressed.write(json.dumps(row).encode() + b"\n")


def _compressed(file: IO[bytes], suffix: str) -> Any:
    """Return a writer that compresses into `file` and leaves it open."""
    if suffix == ".gz":
        return gzip.GzipFile("", "wb", fileobj=file, mtime=0)  # no time stamp in the header
    if suffix == ".xz":
        return lzma.open(file, "wb", preset=9)
    if suffix != ".zst":
        return nullcontext(file)
    try:
        return import_module("zstandard").ZstdCompressor().stream_writer(file, closefd=False)
    except ImportError:
        raise InputError("writing .zst needs the package zstandard: pip install 'gesso-lm[train]'") from None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--count", type=int, required=True, help="number of rows")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same rows")
    parser.add_argument("--out", type=Path, help=f"a file whose name ends in {', '.join(LINES)}")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    asked = parser.parse_args(arguments)
    rows = TASKS[asked.task](asked.count, asked.seed)
    try:
        if asked.out is not None:
            write_rows(rows, asked.out, force=asked.force)
            return
        for row in rows:
            print(json.dumps(row))
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
