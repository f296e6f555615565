"""Protein sequences of the listed packages, divided by similarity, and the file that keeps them.

A family and its relatives are never on both sides: a family is training data or held out as a whole, and a held-out
sequence with a relative among the training data is dropped.
"""

import gzip
import hashlib
import json
import lzma
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from examples.proteins.debs import fetch, read_member, read_packages
from examples.proteins.relatives import best_scores, families
from examples.proteins.residues import RESIDUES, read_fasta
from examples.proteins.windows import SMALLEST
from gesso.errors import InputError
from gesso.eval.task import split_of

LARGE = 100  # sequences of a family that is always training data; it would be a large part of a held-out split
NEAR = 66  # alignment score to a training sequence at which a held-out one is dropped; see relatives.py
MEMBERS = 6  # sequences of a held-out family, at most
KNOWN = 40  # one in so many sequences of the training families is held out, to compare
FILE = "sequences.jsonl.xz"


@dataclass(frozen=True, kw_only=True)
class Protein:
    name: str
    sequence: str
    split: str
    family: str  # the name of its first sequence
    known: bool = False  # held out, but its family is training data


def download(cache: Path, progress: Callable[[str], None]) -> dict[str, str]:
    """Return all different usable sequences of the packages by name."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    for package in read_packages():
        deb = fetch(package, cache, progress)
        for member, direction in package.members.items():
            raw = read_member(deb, member)
            text = (gzip.decompress(raw) if member.endswith(".gz") else raw).decode("ascii")
            for name, sequence in read_fasta(text):
                if direction == "reversed":
                    name, sequence = name.removesuffix("_rev"), sequence[::-1]
                if is_usable(sequence) and sequence not in seen:
                    seen.add(sequence)
                    found.setdefault(name, sequence)
            progress(f"{package.name}: {len(found):,} sequences in all")
    return found


def is_usable(sequence: str) -> bool:
    return len(sequence) >= SMALLEST and not sequence.strip(RESIDUES)


def divide(sequences: Mapping[str, str], progress: Callable[[str], None], known_share: int = KNOWN) -> list[Protein]:
    """Return the sequences with their splits. Those of held-out families with a relative in training are left out."""
    names, texts = list(sequences), list(sequences.values())
    family = families(texts).tolist()
    sizes = Counter(family)
    progress(f"{len(sizes):,} families, the largest with {max(sizes.values()):,} sequences")
    split = ["train" if sizes[f] > LARGE else split_of(names[f]) for f in family]
    train = [text for text, one in zip(texts, split, strict=True) if one == "train"]
    members: dict[int, list[int]] = defaultdict(list)
    for i, f in enumerate(family):
        if split[i] != "train":
            members[f].append(i)
    held = [i for group in members.values() for i in group[:MEMBERS]]
    scores, _ = best_scores([texts[i] for i in held], train)
    kept = {i for i, score in zip(held, scores.tolist(), strict=True) if score < NEAR}
    progress(f"{len(held):,} sequences held out, {len(held) - len(kept):,} dropped for a relative in training")
    proteins = []
    for i, name in enumerate(names):
        if split[i] == "train":
            number = _number(name)
            known = sizes[family[i]] > 1 and number % known_share == 0
            label = ("validation", "test")[number // known_share % 2] if known else "train"
        elif i in kept:
            label, known = split[i], False
        else:
            continue
        proteins.append(Protein(name=name, sequence=texts[i], split=label, family=names[family[i]], known=known))
    return proteins


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"known {name}".encode()).digest()[:4])


def write_lines(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write JSON lines. The same rows give the same bytes."""
    with lzma.open(path, "wb", preset=1) as file:
        for row in rows:
            file.write(json.dumps(row).encode() + b"\n")


def write_proteins(proteins: Sequence[Protein], folder: Path) -> None:
    write_lines(map(asdict, proteins), folder / FILE)


def read_proteins(folder: Path) -> list[Protein]:
    try:
        with lzma.open(folder / FILE, "rt", encoding="utf-8") as file:
            return [Protein(**json.loads(line)) for line in file]
    except (OSError, EOFError, lzma.LZMAError, ValueError, TypeError) as error:
        raise InputError(
            f"{folder / FILE} cannot be read ({error}); write it with python -m examples.proteins.data --out {folder}"
        ) from None
