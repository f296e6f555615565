"""The task for `gesso eval examples.words.task:Words`: complete words that training has not seen."""

import random
import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from examples.words.domain import BLANK, LETTER, LONGEST, hide, prompt, sequences
from gesso.errors import InputError
from gesso.eval import Item
from gesso.eval.task import SPLITS, check_draw

HIDDEN = 0.3  # share of the letters


class Words:
    """Words of a split in random order, each with 30 % of its letters hidden."""

    name = "words"
    scores = ("exact", "valid", "recovery")
    # One answer is right, so every way of decoding takes the most likely letter.
    options: Mapping[str, Any] = MappingProxyType({"max_new_tokens": LONGEST + 2, "greed": 1.0})

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        check_draw(split, count)
        draw, found = random.Random(f"words {split} {seed}"), sequences(split)
        if count > len(found):
            raise InputError(f"the {split} split has {len(found)} sequences, but {count} were requested")
        for word in draw.sample(found, count):
            pattern = hide(word, HIDDEN, draw)
            regex = re.escape(pattern).replace(BLANK, LETTER)
            meta = {"pattern": pattern}
            yield Item(name=pattern, prompt=prompt(pattern), expected=word, meta=meta, constraint={"regex": regex})

    def score(self, item: Item, output: str) -> dict[str, float]:
        """Return whether the answer is the word, whether it is any word that fits, and the share of hidden letters."""
        said, pattern = output.strip(), item.meta["pattern"]
        hidden = [i for i, letter in enumerate(pattern) if letter == BLANK]
        fits = re.fullmatch(item.constraint["regex"], said) is not None
        return {
            "exact": float(said == item.expected),
            "valid": float(fits and said in every_sequence()),
            "recovery": sum(said[i : i + 1] == item.expected[i] for i in hidden) / len(hidden),
        }


@cache
def every_sequence() -> frozenset[str]:
    return frozenset(word for split in SPLITS for word in sequences(split))
