"""Tasks for `gesso eval`: fill a hidden stretch of a protein from both sides.

    gesso eval examples.proteins.task:Proteins -m runs/proteins/model

`Proteins` hides stretches of proteins without relatives in training. `Known` does so for held-out members of training
families. `Motifs` names a motif that the answer must contain.
"""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from examples.proteins.residues import is_similar
from examples.proteins.sequences import read_proteins
from examples.proteins.windows import LONGEST, MIDDLE, MOTIFS, PREFIX, SUFFIX, draw_hole, pattern, prompt
from gesso.errors import InputError
from gesso.eval import Item
from gesso.eval.task import check_draw

FOLDER = Path("data/proteins")
ROUNDS = 100  # items of one sequence, at most


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
        proteins = [p for p in read_proteins(self._folder()) if p.split == split and p.known == self.known]
        random.Random(f"proteins {split} {seed}").shuffle(proteins)
        made = 0
        for turn in range(ROUNDS):
            for protein in proteins:
                item = self.item(protein.name, protein.sequence, random.Random(f"{protein.name} {turn} {seed}"))
                if item is not None:
                    yield item
                    made += 1
                if made == count:
                    return
        raise InputError(f"the {split} split has {made} items of this kind, but {count} were requested")

    def item(self, name: str, sequence: str, draw: random.Random) -> Item | None:
        """Return a random item of a sequence, or None if it has none of this kind."""
        return self._hide(name, sequence, draw, None)

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

    def _hide(self, name: str, sequence: str, draw: random.Random, motif: str | None) -> Item | None:
        hole = draw_hole(draw, sequence, motif)
        if hole is None:
            return None
        length = len(hole.hidden)
        return Item(
            name=f"{name}:{len(hole.before)}+{length}",
            prompt=prompt(hole.before, hole.after, length, motif),
            expected=hole.hidden,
            meta={"before": hole.before, "after": hole.after, "motif": motif},
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

    def item(self, name: str, sequence: str, draw: random.Random) -> Item | None:
        for motif in draw.sample(MOTIFS, len(MOTIFS)):
            if (item := self._hide(name, sequence, draw, motif)) is not None:
                return item
        return None

    def score(self, item: Item, output: str) -> dict[str, float]:
        motif = re.search(item.meta["motif"], output.strip())
        return {"motif": float(motif is not None), **super().score(item, output)}
