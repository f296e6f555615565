"""Score answers without a network, on the items of `gesso eval`: python -m examples.words.baselines

- common letter: the most frequent letter of the training words in every gap
- 4-gram: the most probable word under letter 4-grams, given the letters on both sides of every gap
- training list: the first training word that fits the pattern
- whole list: the first word that fits, of all words with those of the test: a mark that no model has to reach
"""

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

from examples.words.domain import BLANK, sequences
from examples.words.task import Words, every_sequence
from gesso.errors import InputError
from gesso.eval.estimate import estimate_score

EDGE = "\n"  # before and after every word
PRIOR = 3.0  # weight of the shorter context, in occurrences
BEAM = 200  # beginnings that are kept; with more, the answers hardly change
Fill = Callable[[str, str], str]  # from pattern and regular expression to a word


def chain(train: Sequence[str], order: int) -> Fill:
    """Return the most probable word that fits, where each letter depends on the `order` letters before it."""
    counts: Counter[str] = Counter()
    contexts: Counter[str] = Counter()
    for text in (EDGE * order + word + EDGE for word in train):
        for end in range(order, len(text)):
            for size in range(order + 1):
                counts[text[end - size : end + 1]] += 1
                contexts[text[end - size : end]] += 1
    letters = sorted(set("".join(train)))

    @cache
    def probability(context: str, letter: str) -> float:
        shorter = probability(context[1:], letter) if context else 1 / len(letters)
        return (counts[context + letter] + PRIOR * shorter) / (contexts[context] + PRIOR)

    def fill(pattern: str, regex: str) -> str:
        found = [(0.0, EDGE * order)]
        for shown in pattern + EDGE:
            longer = [
                (score + math.log(probability(text[-order:], letter)), text + letter)
                for score, text in found
                for letter in (letters if shown == BLANK else shown)
            ]
            found = sorted(longer, reverse=True)[:BEAM]
        return found[0][1].strip(EDGE)

    return fill


def look_up(words: Sequence[str]) -> Fill:
    """Return the first word that fits, or nothing."""
    text = EDGE + EDGE.join(words) + EDGE

    def fill(pattern: str, regex: str) -> str:
        found = re.search(f"(?<={EDGE}){regex}(?={EDGE})", text)
        return found[0] if found else ""

    return fill


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="items of the test split, as `gesso eval --count`")
    asked = parser.parse_args(arguments)
    task = Words()
    try:
        train, items = sequences("train"), list(task.items("test", asked.count, 0))
    except InputError as error:
        sys.exit(str(error))
    common = Counter("".join(train)).most_common(1)[0][0]
    fills: dict[str, Fill] = {
        "common letter": lambda pattern, regex: pattern.replace(BLANK, common),
        "4-gram": chain(train, 3),
        "training list": look_up(train),
        "whole list": look_up(sorted(every_sequence())),
    }
    print(" " * 14 + "".join(f"{name + ', %':24}" for name in task.scores).rstrip())
    for name, fill in fills.items():
        found = [task.score(item, fill(item.meta["pattern"], item.constraint["regex"])) for item in items]
        cells = [estimate_score([one[score] for one in found]).shown(100) for score in task.scores]
        print(f"{name:14}" + "".join(f"{cell:24}" for cell in cells).rstrip(), flush=True)


if __name__ == "__main__":
    main()
