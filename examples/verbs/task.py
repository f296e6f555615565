"""The task for `gesso eval examples.verbs.task:Verbs`: complete the forms of verbs that training has not seen."""

import random
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from examples.verbs.domain import BLANK, FORMS, LENGTH, LETTER, hide, prompt, sequences
from gesso.errors import InputError
from gesso.eval import Item
from gesso.eval.task import check_draw

HIDDEN = 0.6  # share of the letters


class Verbs:
    """Verbs of a split in random order, each with 60 % of its letters hidden. A second round hides others."""

    name = "verbs"
    scores = ("exact", "forms", "recovery")
    # One answer is right, so every way of decoding takes the most likely letter.
    options: Mapping[str, Any] = MappingProxyType({"max_new_tokens": LENGTH + 3, "greed": 1.0})

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        check_draw(split, count)
        draw, found = random.Random(f"verbs {split} {seed}"), sequences(split)
        if not found:
            raise InputError(f"the {split} split has no sequences; give the file more lines")
        for number in range(count):
            if number % len(found) == 0:
                order = draw.sample(found, len(found))
            verb = order[number % len(found)]
            pattern = hide(verb, HIDDEN, draw)
            regex = "".join(LETTER if letter == BLANK else re.escape(letter) for letter in pattern)
            yield Item(
                name=f"{number} {pattern}",
                prompt=prompt(pattern),
                expected=verb,
                meta={"pattern": pattern},
                constraint={"regex": regex},
            )

    def score(self, item: Item, output: str) -> dict[str, float]:
        """Return whether all forms are right, the share of forms that are, and that of hidden letters."""
        said, expected = output.rstrip(), item.expected
        hidden = [i for i, letter in enumerate(item.meta["pattern"]) if letter == BLANK]
        pairs = zip(said.split(), expected.split(), strict=False)
        return {
            "exact": float(said == expected),
            "forms": sum(form == right for form, right in pairs) / FORMS,
            "recovery": sum(said[i : i + 1] == expected[i] for i in hidden) / len(hidden),
        }
