"""Tasks for `gesso eval`: fill a hidden stretch of a protein from both sides.

    gesso eval examples.proteins.task:Proteins -m runs/proteins/model

`Proteins` hides stretches of proteins without relatives in training. `Known` does so for held-out members of training
families. `Motifs` names a motif that the answer must contain. `Relatives` shows a part of a related protein.
"""

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from examples.proteins.relatives import Relative, related
from examples.proteins.residues import is_similar
from examples.proteins.sequences import Protein, read_proteins
from examples.proteins.windows import (
    LONGEST,
    MIDDLE,
    MOTIFS,
    PREFIX,
    SUFFIX,
    Hole,
    draw_hole,
    draw_hole_beside,
    draw_hole_with,
    pattern,
    prompt,
)
from gesso.errors import InputError
from gesso.eval import Item
from gesso.eval.task import check_draw

FOLDER = Path("data/proteins")
ROUNDS = 100  # items of one sequence, at most
Subject = tuple[Protein, Sequence[Relative]]


@dataclass(frozen=True, kw_only=True)
class Proteins:
    """One hidden stretch of every held-out protein in random order, then another of every protein, and so on."""

    data: tuple[Path, ...] = ()  # the folder of `examples.proteins.data`; FOLDER if empty

    name: ClassVar[str] = "proteins"
    known: ClassVar[bool] = False
    scores: ClassVar[tuple[str, ...]] = ("recovery", "similarity", "length")
    options: ClassVar[Mapping[str, Any]] = MappingProxyType({"max_new_tokens": LONGEST + 8})

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        check_draw(split, count)
        proteins = [p for p in read_proteins(self._folder()) if p.split == split]
        subjects = self.subjects(proteins, random.Random(f"proteins {split} {seed}"))
        made = 0
        for turn in range(ROUNDS):
            for protein, relatives in subjects:
                item = self.item(protein, relatives, random.Random(f"{protein.name} {turn} {seed}"))
                if item is not None:
                    yield item
                    made += 1
                if made == count:
                    return
        raise InputError(f"the {split} split has {made} items of this kind, but {count} were requested")

    def subjects(self, proteins: Sequence[Protein], draw: random.Random) -> list[Subject]:
        """Return the proteins of the items in random order, one of each family that is not training data."""
        found = [p for p in proteins if p.known == self.known and (p.known or p.name == p.family)]
        draw.shuffle(found)
        return [(protein, ()) for protein in found]

    def item(self, protein: Protein, relatives: Sequence[Relative], draw: random.Random) -> Item | None:
        """Return a random item of a protein, or None if it has none of this kind."""
        return self._item(protein, draw_hole(draw, protein.sequence))

    def score(self, item: Item, output: str) -> dict[str, float]:
        """Return the shares of hidden residues that are right or similar, and whether their number is right."""
        said, hidden = output.strip(), item.expected
        pairs = list(zip(said, hidden, strict=False))
        return {
            "recovery": sum(a == b for a, b in pairs) / len(hidden),
            "similarity": sum(a.isascii() and is_similar(a, b) for a, b in pairs) / len(hidden),
            "length": float(len(said) == len(hidden)),
        }

    def hole(self, item: Item) -> tuple[str, str]:
        assert isinstance(item.prompt, str)
        before, after = item.prompt.removeprefix(PREFIX).removesuffix(MIDDLE).split(SUFFIX)
        return before, after

    def _item(self, protein: Protein, hole: Hole, motif: str | None = None, relative: str | None = None) -> Item:
        length = len(hole.hidden)
        return Item(
            name=f"{protein.name}:{len(hole.before)}+{length}",
            prompt=prompt(hole.before, hole.after, length, motif, relative),
            expected=hole.hidden,
            meta={"before": hole.before, "after": hole.after, "motif": motif, "relative": relative},
            constraint={"regex": pattern(length, motif)},
        )

    def _folder(self) -> Path:
        if len(self.data) > 1:
            raise InputError(f"--data: expected one folder, got {', '.join(map(str, self.data))}")
        return self.data[0] if self.data else FOLDER


class Known(Proteins):
    """The same for held-out members of families that are training data."""

    name = "known proteins"
    known = True


class Motifs(Proteins):
    """The same with a motif that occurs in the hidden stretch and is named in the prompt."""

    name = "protein motifs"
    scores = ("motif", "recovery", "similarity", "length")

    def item(self, protein: Protein, relatives: Sequence[Relative], draw: random.Random) -> Item | None:
        for motif in draw.sample(MOTIFS, len(MOTIFS)):
            if (hole := draw_hole_with(draw, protein.sequence, motif)) is not None:
                return self._item(protein, hole, motif)
        return None

    def score(self, item: Item, output: str) -> dict[str, float]:
        motif = re.search(item.meta["motif"], output.strip())
        return {"motif": float(motif is not None), **super().score(item, output)}


class Relatives(Proteins):
    """The same with a part of a related protein in the prompt. The whole family is unknown to the training data."""

    name = "related proteins"

    def subjects(self, proteins: Sequence[Protein], draw: random.Random) -> list[Subject]:
        """Return all held-out proteins with relatives: one of each family, then another of each, and so on."""
        new = [protein for protein in proteins if not protein.known]
        draw.shuffle(new)
        place: Counter[str] = Counter()
        found: list[tuple[int, Subject]] = []
        for protein, relatives in zip(new, related([protein.sequence for protein in new]), strict=True):
            if relatives:
                found.append((place[protein.family], (protein, relatives)))
                place[protein.family] += 1
        return [subject for _, subject in sorted(found, key=itemgetter(0))]

    def item(self, protein: Protein, relatives: Sequence[Relative], draw: random.Random) -> Item | None:
        compared = draw_hole_beside(draw, protein.sequence, draw.choice(relatives))
        if compared is None:
            return None
        hole, relative = compared
        return self._item(protein, hole, relative=relative)
