"""Find related protein sequences: shared words of residues, extended to ungapped alignments scored by BLOSUM62.

Random sequences reach a score S in a comparison of m with n residues about 0.13 m n exp(-0.32 S) times (Karlin and
Altschul, PNAS 87, 1990). Two whole sequences rarely reach 50 by chance. One sequence against a database of 30 million
residues reaches 60 a few times.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from examples.proteins.residues import BLOSUM62, OUTSIDE, encode

Ints = npt.NDArray[np.int64]
Words = tuple[npt.NDArray[np.int32], Ints]  # words of some places as numbers, in order, and the places

WORD = (0, 1, 2, 3, 4, 5)  # offsets of the residues that a shared word compares, to form families
# Words with gaps find relatives that share no run of residues (Ma et al., PatternHunter, 2002).
SPACED = ((0, 1, 2, 3, 4), (0, 1, 3, 5, 6), (0, 1, 2, 5, 6), (0, 2, 3, 6, 7), (0, 1, 4, 6, 9), (0, 2, 5, 6, 7))
DISTINCT = 3  # a word has more different residues than this many less than its length; others are low complexity
NEIGHBOURS = 8  # occurrences of a word that are compared with each one
REACH = 48  # residues to each side of a word
BLOCK = 8  # residues that are added at once
DROP = 16  # an alignment ends where its score is this far below its best
LINK = 62  # score that puts two sequences into one family
SURE = 6  # shared words on one diagonal that need no score
ALIKE = 0.7  # share of equal residues around a shared word up to which two sequences differ
CHUNK = 200_000


@dataclass(frozen=True)
class Packed:
    """Sequences in one array, with gaps between them that no alignment crosses."""

    codes: npt.NDArray[np.uint8]
    owner: npt.NDArray[np.int32]  # the number of the sequence at each place

    @classmethod
    def of(cls, sequences: Sequence[str]) -> "Packed":
        gap = " " * REACH
        codes = encode(gap + "".join(sequence + gap for sequence in sequences))
        lengths = [REACH, *(len(sequence) + REACH for sequence in sequences)]
        owner = np.repeat(np.arange(-1, len(sequences), dtype=np.int32), lengths)
        return cls(codes, owner)

    def words(self, offsets: Sequence[int]) -> Words:
        """Return the words of all places, without those of low complexity."""
        count = max(0, len(self.codes) - offsets[-1])
        number = np.zeros(count, np.int32)
        good = np.ones(count, bool)
        distinct = np.zeros(count, np.uint8)
        for index, offset in enumerate(offsets):
            column = self.codes[offset : offset + count]
            good &= column < OUTSIDE
            number = number * np.int32(OUTSIDE) + column
            new = np.ones(count, bool)
            for earlier in offsets[:index]:
                new &= self.codes[earlier : earlier + count] != column
            distinct += new
        places = np.flatnonzero(good & (distinct > len(offsets) - DISTINCT))
        order = np.argsort(number[places], kind="stable")
        return number[places][order], places[order]


def alignment_scores(a: Packed, at_a: Ints, b: Packed, at_b: Ints) -> Ints:
    """Return the score of the best ungapped alignment through each pair of places."""
    table = BLOSUM62.ravel().astype(np.int16)
    total = table.take(a.codes[at_a] * np.uint16(OUTSIDE + 1) + b.codes[at_b]).astype(np.int64)
    blocks_a, blocks_b = (np.lib.stride_tricks.sliding_window_view(each.codes, BLOCK) for each in (a, b))
    for direction in (1, -1):
        running, best = np.zeros(len(at_a), np.int16), np.zeros(len(at_a), np.int16)
        active = np.arange(len(at_a))
        for offset in range(1, REACH, BLOCK):
            begin = offset if direction == 1 else 1 - offset - BLOCK
            codes_a, codes_b = blocks_a[at_a[active] + begin], blocks_b[at_b[active] + begin]
            scores = table.take(codes_a * np.uint16(OUTSIDE + 1) + codes_b)[:, ::direction]
            sums = running[active, None] + np.cumsum(scores, axis=1, dtype=np.int16)
            running[active] = sums[:, -1]
            best[active] = np.maximum(best[active], sums.max(axis=1))
            active = active[running[active] > best[active] - DROP]
        total += best
    return total


def families(sequences: Sequence[str]) -> Ints:
    """Return the family of each sequence: the number of its first member. Relatives of relatives are in one family."""
    packed = Packed.of(sequences)
    words, places = packed.words(WORD)
    family = np.arange(len(sequences))
    for distance in range(1, NEIGHBOURS + 1):
        same = np.flatnonzero(words[distance:] == words[:-distance])
        at_a, at_b = places[same], places[same + distance]
        at_a, at_b, counts = _diagonals(packed, family, at_a, at_b)
        family = _joined(family, packed, at_a[counts >= SURE], at_b[counts >= SURE])
        apart = family[packed.owner[at_a]] != family[packed.owner[at_b]]
        at_a, at_b = at_a[apart], at_b[apart]
        linked = np.zeros(len(at_a), bool)
        for part in _parts(len(at_a)):
            linked[part] = alignment_scores(packed, at_a[part], packed, at_b[part]) >= LINK
        family = _joined(family, packed, at_a[linked], at_b[linked])
    return family


@dataclass(frozen=True)
class Relative:
    """A relative of a sequence, and where both have the same word."""

    sequence: str
    at: int  # place in the sequence
    there: int  # place in the relative


def related(sequences: Sequence[str]) -> list[list[Relative]]:
    """Return relatives of each sequence among the others, without those that are nearly equal."""
    packed = Packed.of(sequences)
    words, places = packed.words(WORD)
    same = {distance: np.flatnonzero(words[distance:] == words[:-distance]) for distance in (1, 2)}
    at_a = np.concatenate([places[here] for here in same.values()])
    at_b = np.concatenate([places[here + distance] for distance, here in same.items()])
    at_a, at_b, _ = _diagonals(packed, np.arange(len(sequences)), at_a, at_b)
    begins = np.searchsorted(packed.owner, np.arange(len(sequences)))
    around = np.arange(-REACH, REACH + 1)
    found: list[list[Relative]] = [[] for _ in sequences]
    for part in _parts(len(at_a)):
        near = alignment_scores(packed, at_a[part], packed, at_b[part]) >= LINK
        a, b = at_a[part][near], at_b[part][near]
        codes_a, codes_b = packed.codes[a[:, None] + around], packed.codes[b[:, None] + around]
        inside = (codes_a < OUTSIDE) & (codes_b < OUTSIDE)
        differ = ((codes_a == codes_b) & inside).sum(axis=1) <= ALIKE * inside.sum(axis=1)
        one, other = packed.owner[a[differ]], packed.owner[b[differ]]
        rows = (one, a[differ] - begins[one], other, b[differ] - begins[other])
        for first, at, second, there in zip(*(row.tolist() for row in rows), strict=True):
            found[first].append(Relative(sequences[second], at, there))
            found[second].append(Relative(sequences[first], there, at))
    return found


def best_scores(queries: Sequence[str], targets: Sequence[str]) -> tuple[Ints, Ints]:
    """Return the best score of each query against all targets, and the number of that target (-1: no shared word)."""
    ours, theirs = Packed.of(queries), Packed.of(targets)
    score, target = np.zeros(len(queries), np.int64), np.full(len(queries), -1)
    for offsets in SPACED:
        for at_a, at_b in shared_words(ours.words(offsets), theirs.words(offsets)):
            found = alignment_scores(ours, at_a, theirs, at_b)
            query = ours.owner[at_a]
            order = np.argsort(found)  # the highest of a query is written last
            query, found, hit = query[order], found[order], theirs.owner[at_b][order]
            top, top_hit = np.zeros_like(score), np.full_like(target, -1)
            top[query], top_hit[query] = found, hit
            target = np.where(top > score, top_hit, target)
            score = np.maximum(score, top)
    return score, target


def shared_words(a: Words, b: Words) -> Iterator[tuple[Ints, Ints]]:
    """Yield all pairs of places with the same word, in parts."""
    words_a, places_a = a
    words_b, places_b = b
    first, last = np.searchsorted(words_b, words_a), np.searchsorted(words_b, words_a, "right")
    counts = last - first
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(counts):
        end = max(begin + 1, int(np.searchsorted(ends, ends[begin] - counts[begin] + CHUNK)))
        count = counts[begin:end]
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        yield np.repeat(places_a[begin:end], count), places_b[np.repeat(first[begin:end], count) + within]
        begin = end


def _diagonals(packed: Packed, family: Ints, at_a: Ints, at_b: Ints) -> tuple[Ints, Ints, Ints]:
    """Return one pair of places per diagonal of two sequences of different families, and its number of shared words."""
    a, b = packed.owner[at_a].astype(np.int64), packed.owner[at_b].astype(np.int64)
    apart = family[a] != family[b]
    at_a, at_b, a, b = at_a[apart], at_b[apart], a[apart], b[apart]
    # Places differ by the diagonal plus a constant of the two sequences, so sequence and difference identify it.
    keys = a * len(packed.codes) + (at_b - at_a)
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    return at_a[first], at_b[first], counts


def _joined(family: Ints, packed: Packed, at_a: Ints, at_b: Ints) -> Ints:
    """Return the families after those of each pair of places are joined."""
    pairs = np.unique(np.stack([family[packed.owner[at_a]], family[packed.owner[at_b]]], axis=1), axis=0)
    parent = family.tolist()

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    for one, other in pairs.tolist():
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    return np.array([root(number) for number in range(len(family))], np.int64)


def _parts(count: int) -> Iterator[slice]:
    return (slice(begin, begin + CHUNK) for begin in range(0, count, CHUNK))
