"""Local alignments with gaps (Smith and Waterman, 1981; affine gaps as in BLAST), and their significance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from examples.proteins.residues import BLOSUM62, OUTSIDE, encode

OPEN, EXTEND = 11, 1  # a gap of k residues costs OPEN + k * EXTEND
LAMBDA, K = 0.267, 0.041  # of this scoring (Altschul and Gish, Methods in Enzymology 266, 1996)
CELLS = 20_000_000  # of the matrices that are computed at once
LONGEST_GAP = 60  # residues; longer gaps end an alignment


@dataclass(frozen=True)
class Alignment:
    score: int
    columns: int
    identity: float  # share of the columns with the same residue

    def expected(self, query: int, database: int) -> float:
        """Return how many alignments of this score chance gives, for a query against a database of these sizes."""
        return K * query * database * math.exp(-LAMBDA * self.score)


def align(query: str, targets: Sequence[str]) -> list[Alignment]:
    """Return the best local alignment of a sequence with each of some others."""
    width = max(map(len, targets))
    together = max(1, CELLS // (len(query) * width))
    found = []
    for begin in range(0, len(targets), together):
        part = targets[begin : begin + together]
        codes = np.full((len(part), width), OUTSIDE, np.uint8)
        for row, target in enumerate(part):
            codes[row, : len(target)] = encode(target)
        scores = _matrix(encode(query), codes)
        found += [_trace(query, target, scores[:, row]) for row, target in enumerate(part)]
    return found


def _matrix(query: npt.NDArray[np.uint8], codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """Return the best score that ends at each pair of places: [query + 1, target, place + 1]."""
    count, width = codes.shape
    found = np.zeros((len(query) + 1, count, width + 1), np.int32)
    down = np.full((count, width + 1), -OPEN, np.int32)  # best score that ends with residues of the query alone
    ramp = EXTEND * np.arange(width + 1, dtype=np.int32)
    for row, code in enumerate(query, start=1):
        down = np.maximum(down, found[row - 1] - OPEN) - EXTEND
        here = np.maximum(down, 0)
        here[:, 1:] = np.maximum(here[:, 1:], found[row - 1, :, :-1] + BLOSUM62[code][codes])
        # A gap in the query that ends at j began at the best earlier place: one running maximum finds them all.
        best = np.maximum.accumulate(here + ramp, axis=1)[:, :-1] - OPEN - ramp[1:]
        here[:, 1:] = np.maximum(here[:, 1:], best)
        found[row] = here
    return found


def _trace(query: str, target: str, scores: npt.NDArray[np.int32]) -> Alignment:
    """Return the alignment that ends at the highest score."""
    scores = scores[:, : len(target) + 1]
    end = int(scores.argmax())
    i, j = divmod(end, scores.shape[1])
    score, columns, same = int(scores[i, j]), 0, 0
    query_codes, target_codes = encode(query), encode(target)
    while scores[i, j] > 0:
        if scores[i, j] == scores[i - 1, j - 1] + BLOSUM62[query_codes[i - 1], target_codes[j - 1]]:
            i, j, columns, same = i - 1, j - 1, columns + 1, same + (query[i - 1] == target[j - 1])
            continue
        for gap in range(1, LONGEST_GAP + 1):
            cost = scores[i, j] + OPEN + gap * EXTEND
            if gap <= i and scores[i - gap, j] == cost:
                i, columns = i - gap, columns + gap
                break
            if gap <= j and scores[i, j - gap] == cost:
                j, columns = j - gap, columns + gap
                break
        else:
            break
    return Alignment(score, columns, same / max(1, columns))
