"""The domain: the sequences, their split, and the question about one of them. This is the file to change for yours."""

import random
import re
from pathlib import Path

from gesso.errors import InputError
from gesso.eval.task import split_of

FILE = Path("data/verbs/verbs.txt")  # one sequence per line: three forms of a verb, such as `go went going`
FORMS, WIDTH = 3, 11  # columns of a sequence, and characters of each, with at least one space
LENGTH = FORMS * WIDTH  # verbs.toml has a canvas for it and the end
LETTER = "[a-z]"  # regular expression of one letter
BLANK = "_"  # in place of a hidden letter; in no sequence


def sequences(split: str) -> list[str]:
    """Return the sequences of a split, in columns. Those with the same first four letters are in the same one."""
    if not FILE.exists():
        raise InputError(f"{FILE}: no such file; write it with `python -m examples.verbs.fetch`, or put your own there")
    lines = {line.strip() for line in FILE.read_text(encoding="utf-8").splitlines()}
    usable = re.compile(" ".join([f"{LETTER}{{1,{WIDTH - 1}}}"] * FORMS))
    return [columns(line) for line in sorted(lines) if usable.fullmatch(line) and split_of(line[:4]) == split]


def columns(line: str) -> str:
    """Return the words of a line in columns, without spaces at the end."""
    return "".join(word.ljust(WIDTH) for word in line.split()).rstrip()


def hide(sequence: str, share: float, draw: random.Random) -> str:
    """Return the sequence with a share of its letters hidden, at random positions."""
    letters = [i for i, letter in enumerate(sequence) if letter != " "]
    hidden = draw.sample(letters, max(1, round(share * len(letters))))
    return "".join(BLANK if i in hidden else letter for i, letter in enumerate(sequence))


def prompt(pattern: str) -> str:
    """Return the text that the model continues with the sequence."""
    return f"{pattern.ljust(LENGTH)}="
