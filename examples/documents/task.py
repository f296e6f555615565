"""The task: repair a damaged excerpt by a patch. `gesso eval examples.documents.task:Documents`."""

import json
import lzma
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from examples.documents import patch
from examples.documents.damage import MOST, damage
from examples.documents.structure import KINDS, is_same
from gesso.errors import InputError
from gesso.eval import Item
from gesso.eval.task import check_draw

EXCERPTS = Path("data/documents/excerpts.jsonl.xz")
INTACT = 0.1  # share of the items without damage, which must stay as they are


def read_excerpts(path: Path, split: str) -> list[dict[str, str]]:
    try:
        with lzma.open(path, "rt", encoding="utf-8") as rows:
            return [row for row in map(json.loads, rows) if row["split"] == split]
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        made = "python -m examples.documents.data --out data/documents"
        raise InputError(f"{path}: expected excerpts as `{made}` writes them; {error}") from None


def question(kind: str, text: str) -> str:
    return f"{kind}\n{patch.numbered(text)}patch\n"


def make_item(excerpt: Mapping[str, str], rng: random.Random) -> Item:
    """Return an excerpt with up to three damages, and the patch that repairs it."""
    kind, text = excerpt["kind"], excerpt["text"]
    damaged, damages = damage(kind, text, 0 if rng.random() < INTACT else rng.randint(1, MOST), rng)
    return Item(
        name=f"{excerpt['source']} {'+'.join(sorted(one.rule for one in damages)) or 'intact'}",
        prompt=question(kind, damaged),
        expected=patch.make(damaged, text),
        meta={"kind": kind, "damaged": damaged, "original": text},
        constraint={"regex": patch.pattern(damaged)},
    )


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Excerpts of the packages of a split, damaged by a seed: Markdown and JSON in turn."""

    data: tuple[Path, ...] = (EXCERPTS,)

    name: ClassVar[str] = "documents"
    kinds: ClassVar[tuple[str, ...]] = KINDS
    scores: ClassVar[tuple[str, ...]] = ("repaired", "exact", "untouched", "edit")
    options: ClassVar[Mapping[str, Any]] = MappingProxyType({"max_new_tokens": 128})

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        """Return every excerpt once, then every excerpt with other damages, and so on."""
        check_draw(split, count)
        found = [excerpt for path in self.data for excerpt in read_excerpts(path, split)]
        rng = random.Random(f"documents {split} {seed}")
        rng.shuffle(found)
        turns = [[excerpt for excerpt in found if excerpt["kind"] == kind] for kind in self.kinds]
        if not all(turns):
            raise InputError(f"{', '.join(map(str, self.data))}: no excerpts in the {split} split")
        return self._draw(turns, count, rng)

    def _draw(self, turns: Sequence[Sequence[Mapping[str, str]]], count: int, rng: random.Random) -> Iterator[Item]:
        for number in range(count):
            kind = turns[number % len(turns)]
            yield make_item(kind[number // len(turns) % len(kind)], rng)

    def score(self, item: Item, output: str) -> dict[str, float]:
        return score(item, patch.apply(output, item.meta["damaged"]))


class Markdown(Documents):
    name = "markdown"
    kinds = ("markdown",)


class Json(Documents):
    name = "json"
    kinds = ("json",)


def score(item: Item, repaired: str) -> dict[str, float]:
    """Return the scores of a repaired text.

    repaired: it has the HTML or the JSON value of the original
    exact: it is the original
    untouched: all lines without damage are as they were
    edit: how much of the damage is gone, by the edit distance to the original; 0 if it is as large as before
    """
    kind, damaged, original = (item.meta[key] for key in ("kind", "damaged", "original"))
    left = distance(repaired, original)
    return {
        "repaired": float(is_same(kind, repaired, original)),
        "exact": float(repaired == original),
        "untouched": float(is_untouched(damaged, original, repaired)),
        "edit": max(0.0, 1 - left / max(1, distance(damaged, original))),
    }


def is_untouched(damaged: str, original: str, repaired: str) -> bool:
    """Return whether the lines that damage left alone are in a repaired text, in order."""
    changed = {int(change[1]) for change in patch.changes(patch.make(damaged, original)) if change[2] != "+"}
    rest = iter(repaired.split("\n"))
    return all(line in rest for number, line in enumerate(damaged.split("\n"), 1) if number not in changed)


def distance(text: str, other: str) -> int:
    """Return the Levenshtein distance, in time that grows with the distance (Ukkonen 1985, Information and Control 64).

    Diagonal d pairs position i of one text with i + d of the other. `reach` has the furthest i on each diagonal.
    """
    edits, reach, goal = 0, {0: 0}, len(other) - len(text)
    while True:
        for diagonal, i in reach.items():
            while i < len(text) and i + diagonal < len(other) and text[i] == other[i + diagonal]:
                i += 1
            reach[diagonal] = i
        if reach.get(goal) == len(text):
            return edits
        edits += 1
        further: dict[int, int] = {}
        for diagonal, i in reach.items():
            for near, at in ((diagonal, i + 1), (diagonal - 1, i + 1), (diagonal + 1, i)):
                if at <= len(text) and at + near <= len(other):
                    further[near] = max(further.get(near, 0), at)
        reach = further
