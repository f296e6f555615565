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

from examples.proteins.relatives import Relative, related
from examples.proteins.sequences import Protein, divide, download, write_lines, write_proteins
from examples.proteins.windows import (
    LONGEST,
    MOTIFS,
    SHORTEST,
    Hole,
    draw_hole,
    draw_hole_beside,
    draw_hole_with,
    prompt,
)
from gesso.errors import InputError

HIDDEN = (SHORTEST + LONGEST) / 2
COMPARED = 0.7  # share of the rows with a relative, if the sequence has any
NAMED = 0.25  # share of the others that try to name a motif


def rows_of(protein: Protein, relatives: Sequence[Relative], coverage: float) -> Iterator[dict[str, Any]]:
    """Yield training rows of one sequence: as many as hide each residue `coverage` times on average."""
    draw = random.Random(f"rows {protein.name}")
    for _ in range(max(1, round(coverage * len(protein.sequence) / HIDDEN))):
        if relatives and draw.random() < COMPARED:
            compared = draw_hole_beside(draw, protein.sequence, draw.choice(relatives))
            if compared is not None:
                hole, relative = compared
                yield _row(hole, relative=relative)
                continue
        if draw.random() < NAMED:
            motif = draw.choice(MOTIFS)
            named = draw_hole_with(draw, protein.sequence, motif)
            if named is not None:
                yield _row(named, motif=motif)
                continue
        yield _row(draw_hole(draw, protein.sequence))


def _row(hole: Hole, motif: str | None = None, relative: str | None = None) -> dict[str, Any]:
    asked = prompt(hole.before, hole.after, len(hole.hidden), motif, relative)
    return {"prompt": asked, "completion": hole.hidden}


def write_data(proteins: Sequence[Protein], out: Path, coverage: float) -> None:
    write_proteins(proteins, out)
    train = [protein for protein in proteins if protein.split == "train"]
    relatives = related([protein.sequence for protein in train])
    rows = (row for protein, known in zip(train, relatives, strict=True) for row in rows_of(protein, known, coverage))
    write_lines(rows, out / "train.jsonl.xz")


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
