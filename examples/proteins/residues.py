"""The twenty amino acids, how similar they are, and FASTA files."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
OUTSIDE = len(RESIDUES)  # code of everything that is not a residue
APART = -8  # score of a residue against the gap between two sequences

# BLOSUM62 in half bits, in the order of RESIDUES. Henikoff and Henikoff, PNAS 89, 1992.
_BLOSUM62 = """
 4  0 -2 -1 -2  0 -2 -1 -1 -1 -1 -2 -1 -1 -1  1  0  0 -3 -2
 0  9 -3 -4 -2 -3 -3 -1 -3 -1 -1 -3 -3 -3 -3 -1 -1 -1 -2 -2
-2 -3  6  2 -3 -1 -1 -3 -1 -4 -3  1 -1  0 -2  0 -1 -3 -4 -3
-1 -4  2  5 -3 -2  0 -3  1 -3 -2  0 -1  2  0  0 -1 -2 -3 -2
-2 -2 -3 -3  6 -3 -1  0 -3  0  0 -3 -4 -3 -3 -2 -2 -1  1  3
 0 -3 -1 -2 -3  6 -2 -4 -2 -4 -3  0 -2 -2 -2  0 -2 -3 -2 -3
-2 -3 -1  0 -1 -2  8 -3 -1 -3 -2  1 -2  0  0 -1 -2 -3 -2  2
-1 -1 -3 -3  0 -4 -3  4 -3  2  1 -3 -3 -3 -3 -2 -1  3 -3 -1
-1 -3 -1  1 -3 -2 -1 -3  5 -2 -1  0 -1  1  2  0 -1 -2 -3 -2
-1 -1 -4 -3  0 -4 -3  2 -2  4  2 -3 -3 -2 -2 -2 -1  1 -2 -1
-1 -1 -3 -2  0 -3 -2  1 -1  2  5 -2 -2  0 -1 -1 -1  1 -1 -1
-2 -3  1  0 -3  0  1 -3  0 -3 -2  6 -2  0  0  1  0 -3 -4 -2
-1 -3 -1 -1 -4 -2 -2 -3 -1 -3 -2 -2  7 -1 -2 -1 -1 -2 -4 -3
-1 -3  0  2 -3 -2  0 -3  1 -2  0  0 -1  5  1  0 -1 -2 -2 -1
-1 -3 -2  0 -3 -2  0 -3  2 -2 -1  0 -2  1  5 -1 -1 -3 -3 -2
 1 -1  0  0 -2  0 -1 -2  0 -2 -1  1 -1  0 -1  4  1 -2 -3 -2
 0 -1 -1 -1 -2 -2 -2 -1 -1 -1 -1  0 -1 -1 -1  1  5  0 -2 -2
 0 -1 -3 -2 -1 -3 -3  3 -2  1  1 -3 -2 -2 -3 -2  0  4 -3 -1
-3 -2 -4 -3  1 -2 -2 -3 -3 -2 -1 -4 -4 -2 -3 -3 -2 -3 11  2
-2 -2 -3 -2  3 -3  2 -1 -2 -1 -1 -2 -3 -1 -2 -2 -2 -1  2  7
"""
BLOSUM62 = np.full((OUTSIDE + 1, OUTSIDE + 1), APART, np.int8)
BLOSUM62[:OUTSIDE, :OUTSIDE] = np.array(_BLOSUM62.split(), np.int8).reshape(OUTSIDE, OUTSIDE)

_CODES = np.full(256, OUTSIDE, np.uint8)
_CODES[np.frombuffer(RESIDUES.encode(), np.uint8)] = np.arange(OUTSIDE)


def encode(text: str) -> npt.NDArray[np.uint8]:
    """Return the index of each residue in RESIDUES, OUTSIDE for any other character."""
    return _CODES[np.frombuffer(text.encode("ascii"), np.uint8)]


def is_similar(a: str, b: str) -> bool:
    """Return whether evolution exchanges the two residues more often than chance: a positive BLOSUM62 score."""
    i, j = encode(a + b)
    return bool(BLOSUM62[i, j] > 0)


def read_fasta(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and sequence of each entry. The name is the first word of the header."""
    for entry in ("\n" + text).split("\n>")[1:]:
        header, _, body = entry.partition("\n")
        yield header.split()[0], "".join(body.split())
