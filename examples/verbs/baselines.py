"""Score answers without a network, on the items of `gesso eval`: python -m examples.verbs.baselines

- common letter: the most frequent letter of the training verbs in every gap
- 4-gram: the most probable letters under letter 4-grams, given the letters on both sides of every gap
- copy: letters of the stem that another form shows, and 4-grams for the rest
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

from examples.verbs.domain import BLANK, FORMS, WIDTH, sequences
from examples.verbs.task import Verbs
from gesso.errors import InputError
from gesso.eval.estimate import estimate_score

EDGE = "\n"  # before and after every sequence
PRIOR = 3.0  # weight of the shorter context, in occurrences
BEAM = 60  # beginnings that are kept
Fill = Callable[[str], str]


def chain(train: Sequence[str], order: int) -> Fill:
    """Return the function to the most probable sequence, where each letter depends on the `order` before it."""
    counts: Counter[str] = Counter()
    contexts: Counter[str] = Counter()
    for text in (EDGE * order + sequence + EDGE for sequence in train):
        for end in range(order, len(text)):
            for size in range(order + 1):
                counts[text[end - size : end + 1]] += 1
                contexts[text[end - size : end]] += 1
    letters = sorted(set("".join(train)) - {" "})

    @cache
    def probability(context: str, letter: str) -> float:
        shorter = probability(context[1:], letter) if context else 1 / len(letters)
        return (counts[context + letter] + PRIOR * shorter) / (contexts[context] + PRIOR)

    def fill(pattern: str) -> str:
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


def copied(pattern: str) -> str:
    """Return the pattern with letters of the stem that another form shows: all of the infinitive but the last."""
    stem = len(pattern.split()[0]) - 1
    shown = dict[int, str]()
    for at, letter in enumerate(pattern):
        if letter not in (BLANK, " "):
            shown.setdefault(at % WIDTH, letter)
    known = {form * WIDTH + at: letter for form in range(FORMS) for at, letter in shown.items() if at < stem}
    return "".join(known.get(at, BLANK) if letter == BLANK else letter for at, letter in enumerate(pattern))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="items of the test split, as `gesso eval --count`")
    asked = parser.parse_args(arguments)
    task = Verbs()
    try:
        train, items = sequences("train"), list(task.items("test", asked.count, 0))
    except InputError as error:
        sys.exit(str(error))
    common, likely = Counter("".join(train).replace(" ", "")).most_common(1)[0][0], chain(train, 3)
    fills: dict[str, Fill] = {
        "common letter": lambda pattern: pattern.replace(BLANK, common),
        "4-gram": likely,
        "copy": lambda pattern: likely(copied(pattern)),
    }
    print(" " * 14 + "".join(f"{name + ', %':24}" for name in task.scores).rstrip())
    for name, fill in fills.items():
        found = [task.score(item, fill(item.meta["pattern"])) for item in items]
        cells = [estimate_score([one[score] for one in found]).shown(100) for score in task.scores]
        print(f"{name:14}" + "".join(f"{cell:24}" for cell in cells).rstrip(), flush=True)


if __name__ == "__main__":
    main()
