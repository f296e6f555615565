"""Write training rows and held-out sequences.

    python -m examples.proteins.data --out data/proteins

`sequences.jsonl.xz` has all sequences with their splits, `train.jsonl.xz` the rows for `gesso train`. The packages are
kept in OUT/debs. It takes about five minutes on one core.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from examples.proteins.sequences import Protein, divide, download, write_lines, write_proteins
from examples.proteins.windows import LONGEST, MOTIFS, SHORTEST, draw_hole, prompt
from gesso.errors import InputError

HIDDEN = (SHORTEST + LONGEST) / 2
NAMED = 0.25  # share of the rows that try to name a motif


def rows_of(protein: Protein, coverage: float) -> Iterator[dict[str, Any]]:
    """Yield training rows of one sequence: as many as hide each residue `coverage` times on average."""
    draw = random.Random(f"rows {protein.name}")
    for _ in range(max(1, round(coverage * len(protein.sequence) / HIDDEN))):
        motif = draw.choice(MOTIFS) if draw.random() < NAMED else None
        hole = draw_hole(draw, protein.sequence, motif)
        if hole is None:
            motif, hole = None, draw_hole(draw, protein.sequence)
        assert hole is not None
        yield {"prompt": prompt(hole.before, hole.after, len(hole.hidden), motif), "completion": hole.hidden}


def write_data(proteins: Sequence[Protein], out: Path, coverage: float) -> None:
    write_proteins(proteins, out)
    train = [protein for protein in proteins if protein.split == "train"]
    write_lines((row for protein in train for row in rows_of(protein, coverage)), out / "train.jsonl.xz")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/proteins"))
    parser.add_argument("--coverage", type=float, default=0.4, help="how often a residue is hidden, on average")
    asked = parser.parse_args(arguments)
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
        proteins = divide(download(asked.out / "debs", print), print)
        write_data(proteins, asked.out, asked.coverage)
        for split in ("train", "validation", "test"):
            new = sum(protein.split == split and not protein.known for protein in proteins)
            known = sum(protein.split == split and protein.known for protein in proteins)
            print(f"{split}: {new:,} sequences" + (f", and {known:,} of training families" if known else ""))
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
