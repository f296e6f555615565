"""The task's form: a window of a protein with a hidden stretch, and the prompt that asks for it.

The prompt is `<|fim_prefix|>17\\nMKFLIL<|fim_suffix|>AADNHG<|fim_middle|>`: the length of the hidden stretch, a motif
that it must contain if there is one, a line with a part of a related protein if there is one, the residues before the
stretch, and those after it. The answer is the stretch.
"""

import random
import re
from dataclasses import dataclass

from examples.proteins.relatives import WORD, Relative
from examples.proteins.residues import RESIDUES

PREFIX, SUFFIX, MIDDLE = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"
WINDOW = 220  # residues shown and hidden
SHORTEST, LONGEST = 5, 40  # residues hidden
EDGE = 8  # residues shown on each side, at least
SHARED = WINDOW // 2  # residues of the window, and of the relative, if there is one
LOOSE = 10  # residues by which the relative's window may be shifted against the alignment
SMALLEST = 60  # residues of a sequence; shorter ones are not used

# Short motifs of PROSITE that are frequent enough to be learned, as regular expressions over residues.
MOTIFS = (
    "N[^P][ST][^P]",  # N-glycosylation, PS00001
    "[ST].[RK]",  # phosphorylation by protein kinase C, PS00005
    "[ST]..[DE]",  # phosphorylation by casein kinase II, PS00006
    "RGD",  # cell attachment, PS00016
    "[AG]....GK[ST]",  # P-loop, PS00017
    "C..C",  # pairs of cysteines that bind metals
)


@dataclass(frozen=True)
class Hole:
    before: str
    hidden: str
    after: str


def draw_hole(draw: random.Random, sequence: str) -> Hole:
    """Return a random window of a sequence with a hidden stretch."""
    start = draw.randrange(max(0, len(sequence) - WINDOW) + 1)
    window = sequence[start : start + WINDOW]
    size = draw.randint(SHORTEST, min(LONGEST, len(window) // 3))
    begin = draw.randint(EDGE, len(window) - EDGE - size)
    return Hole(window[:begin], window[begin : begin + size], window[begin + size :])


def draw_hole_with(draw: random.Random, sequence: str, motif: str) -> Hole | None:
    """Return a random window whose hidden stretch has the motif, or None if there is none."""
    places = [match.start() for match in re.finditer(f"(?={motif})", sequence)]
    width = len(classes(motif))
    draw.shuffle(places)
    for place in places:
        size = draw.randint(max(SHORTEST, width), min(LONGEST, len(sequence) // 3))
        begin = place - draw.randint(0, size - width)
        if EDGE <= begin <= len(sequence) - EDGE - size:
            low, high = max(0, begin + size + EDGE - WINDOW), min(begin - EDGE, len(sequence) - WINDOW)
            start = draw.randint(low, max(low, high))
            window, begin = sequence[start : start + WINDOW], begin - start
            return Hole(window[:begin], window[begin : begin + size], window[begin + size :])
    return None


def draw_hole_beside(draw: random.Random, sequence: str, relative: Relative) -> tuple[Hole, str] | None:
    """Return a window around a word shared with a relative, and the relative's residues there.

    The hidden stretch does not touch the shared word, and the relative is long enough to have residues in its place.
    """
    start = max(0, min(relative.at - draw.randint(EDGE, SHARED - EDGE), len(sequence) - SHARED))
    window, word, shift = sequence[start : start + SHARED], relative.at - start, relative.there - relative.at
    size = draw.randint(SHORTEST, min(LONGEST, len(window) // 3))
    begins = [
        begin
        for begin in range(EDGE, len(window) - EDGE - size + 1)
        if (begin + size <= word or word + len(WORD) <= begin)
        and 0 <= start + begin + shift <= len(relative.sequence) - size
    ]
    if not begins:
        return None
    begin = draw.choice(begins)
    there = max(0, min(start + shift + draw.randint(-LOOSE, LOOSE), len(relative.sequence) - SHARED))
    hole = Hole(window[:begin], window[begin : begin + size], window[begin + size :])
    return hole, relative.sequence[there : there + SHARED]


def prompt(before: str, after: str, length: int, motif: str | None = None, relative: str | None = None) -> str:
    """Return the prompt that asks for `length` residues between two texts, with a motif and a relative if there are."""
    asked = f"{length} {motif}" if motif else str(length)
    if relative:
        asked += f"\n{relative}"
    return f"{PREFIX}{asked}\n{before}{SUFFIX}{after}{MIDDLE}"


def classes(motif: str) -> list[str]:
    """Return the residues that a motif allows at each position. It has letters, `.`, `[…]` and `[^…]` only."""
    parts = re.findall(r"\[\^?[A-Z]+\]|[A-Z.]", motif)
    return ["".join(residue for residue in RESIDUES if re.fullmatch(part, residue)) for part in parts]


def pattern(length: int, motif: str | None = None) -> str:
    """Return a regular expression for answers: so many residues, with the motif anywhere among them."""
    if not motif:
        return f"[{RESIDUES}]{{{length}}}"
    width, core = len(classes(motif)), "".join(f"[{allowed}]" for allowed in classes(motif))
    free = length - width
    return "|".join(f"[{RESIDUES}]{{{left}}}{core}[{RESIDUES}]{{{free - left}}}" for left in range(free + 1))
