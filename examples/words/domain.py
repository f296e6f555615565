"""The domain: the sequences, their split, and the question about one of them. This is the file to change for yours."""

import random
import re
from pathlib import Path

from gesso.errors import InputError
from gesso.eval.task import split_of

FILE = Path("data/words/words.txt")  # one sequence per line
SHORTEST, LONGEST = 7, 14  # letters of a sequence; words.toml has a canvas for LONGEST and the end
LETTER = "[a-z]"  # regular expression of one letter
BLANK = "_"  # in place of a hidden letter; in no sequence
FILLER = "-"  # after a short pattern: the answer then begins at the same position for all lengths


def sequences(split: str) -> list[str]:
    """Return the sequences of a split. Those with the same first four letters are in the same one."""
    if not FILE.exists():
        raise InputError(f"{FILE}: no such file; write it with `python -m examples.words.fetch`, or put your own there")
    lines = {line.strip() for line in FILE.read_text(encoding="utf-8").splitlines()}
    usable = re.compile(f"{LETTER}{{{SHORTEST},{LONGEST}}}")
    return sorted(line for line in lines if usable.fullmatch(line) and split_of(line[:4]) == split)


def hide(sequence: str, share: float, draw: random.Random) -> str:
    """Return the sequence with a share of its letters hidden, at random positions."""
    hidden = draw.sample(range(len(sequence)), max(1, round(share * len(sequence))))
    return "".join(BLANK if i in hidden else letter for i, letter in enumerate(sequence))


def prompt(pattern: str) -> str:
    """Return the text that the model continues with the sequence."""
    return f"{pattern.ljust(LONGEST, FILLER)}="
