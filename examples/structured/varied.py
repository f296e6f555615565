"""Training rows of the structured task in more wordings and with more words, so that a model copies words it never met.

Frames that suit any field name it in many ways, clauses have words around them, and values are composed of pieces of
the vocabulary, so that every piece is copied somewhere. Wordings of the validation and test splits are not among them,
and words keep their split.
"""

import json
import random
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from examples.structured.long_values import LONG_VALUES
from examples.structured.rows import row_of
from gesso.bundled import DIRECTORIES
from gesso.eval.structured.domains import FRAMES, SWITCHES, Wordings
from gesso.eval.structured.requests import Language, compact, make_item
from gesso.eval.structured.words import STRINGS, Make
from gesso.eval.task import check_draw, split_of

LONGEST_ROW = 1100  # characters as JSON: at most 512 tokens
LONGEST_ANSWER = 190  # characters: at most 96 tokens
LONG_SHARE = 0.3  # of values that may be of any length

_DATA = tomllib.loads(Path(__file__).with_name("varied.toml").read_text(encoding="utf-8"))
BEFORE, AFTER = tuple(_DATA["before"]), tuple(_DATA["after"])  # words around a clause
MORE_FRAMES, MORE_SWITCHES = tuple(_DATA["frames"]), tuple(_DATA["switches"])


def training_rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield rows of `messages`, and of `tools` where the request has some."""
    check_draw("train", count)
    for n in range(count):
        yield _row(random.Random(f"varied rows {seed} {n}"))


def _row(rng: random.Random) -> dict[str, Any]:
    while True:
        row = row_of(make_item("", "train", rng, language=VARIED))
        if len(compact(row)) <= LONGEST_ROW and len(compact(row["messages"][-1])) <= LONGEST_ANSWER:
            return row


def pieced(split: str, rng: random.Random) -> str:
    """Return a word of one to four pieces of the vocabulary."""
    while True:
        text = "".join(rng.choices(pieces(), k=rng.choice((1, 1, 2, 2, 3, 4))))
        if split_of(text) == split:
            return text


@cache
def pieces() -> tuple[str, ...]:
    """Return the tokens of gesso-mini that are part of a lower-case word."""
    tokenizer = json.loads((DIRECTORIES["gesso-mini"] / "tokenizer.json").read_text(encoding="utf-8"))
    return tuple(token for token in tokenizer["model"]["vocab"] if re.fullmatch("[a-z]{2,}", token))


def _name(split: str, rng: random.Random) -> str:
    return pieced(split, rng).capitalize()


def _person(split: str, rng: random.Random) -> str:
    return rng.choice((_name(split, rng), f"{_name(split, rng)} {_name(split, rng)}"))


def _company(split: str, rng: random.Random) -> str:
    return rng.choice(("{} Ltd", "{} Works", "{} and Sons", "{} and Sons", "{}")).format(_name(split, rng))


def _venue(split: str, rng: random.Random) -> str:
    return rng.choice(("Cafe {}", "{} Grill", "Casa {}", "The {}")).format(_name(split, rng))


def _street(split: str, rng: random.Random) -> str:
    kind = rng.choice(("Street", "Road", "Lane", "Avenue"))
    return f"{rng.randint(1, 199)} {_name(split, rng)} {kind}"


def _email(split: str, rng: random.Random) -> str:
    user = f"{pieced(split, rng)}{rng.randint(1, 99) if rng.random() < 0.5 else ''}"
    return f"{user}@{pieced(split, rng)}.{rng.choice(('com', 'org'))}"


def _title(split: str, rng: random.Random) -> str:
    forms = ("The {} {}", "{} {}", "{} of {}", "A {} in {}", "The {}", "{}")
    return rng.choice(forms).format(_name(split, rng), _name(split, rng))


def _dish(split: str, rng: random.Random) -> str:
    form = rng.choice(("{} soup", "{} pie", "{} salad", "{} and {} stew", "{} with {}", "baked {}", "{} cake"))
    return form.format(pieced(split, rng), pieced(split, rng))


def _thing(split: str, rng: random.Random) -> str:
    return f"{pieced(split, rng)} {pieced(split, rng)}"


def _chore(split: str, rng: random.Random) -> str:
    return f"{pieced(split, rng)} the {pieced(split, rng)}"


def _fault(split: str, rng: random.Random) -> str:
    complaint = rng.choice(("does not open", "is too slow", "shows nothing", "crashes", "is missing"))
    return f"{pieced(split, rng)} {complaint}"


def _option(split: str, rng: random.Random) -> str:
    return f"{pieced(split, rng)}_{rng.choice(('size', 'limit', 'mode', 'rate'))}"


def _file(split: str, rng: random.Random) -> str:
    stem = rng.choice(("{a}", "{a}_{b}", "{a}/{b}", "{a}{n}"))
    name = stem.format(a=pieced(split, rng), b=pieced(split, rng), n=rng.randint(1, 99))
    return f"{name}.{rng.choice(('txt', 'csv', 'png', 'pdf'))}"


PIECED: dict[str, Make] = {
    "person": _person,
    "first": _name,
    "city": _name,
    "company": _company,
    "venue": _venue,
    "street": _street,
    "email": _email,
    "title": _title,
    "thing": _thing,
    "noun": pieced,
    "food": pieced,
    "dish": _dish,
    "chore": _chore,
    "fault": _fault,
    "option": _option,
    "file": _file,
}


class Mixed:
    """A generator of one kind of values: those of the task, longer ones, or words of pieces."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, split: str, rng: random.Random) -> str:
        if rng.random() < LONG_SHARE:
            return LONG_VALUES[self.kind](split, rng)
        of_pieces = PIECED.get(self.kind)
        if of_pieces is not None and rng.random() < 0.6:
            return of_pieces(split, rng)
        return STRINGS[self.kind](split, rng)


def turned(clause: str, rng: random.Random) -> str:
    """Return a clause, half of the time with words before or after it. Some of these words are made up."""
    kind = rng.random()
    if kind < 0.25:
        return f"{rng.choice(BEFORE)} {clause}"
    if kind < 0.4:
        return f"{pieced('train', rng)}ing {clause}"  # an ending that values rarely have
    if kind < 0.5:
        return f"{clause} {rng.choice(AFTER)}"
    return clause


def _with(wordings: Wordings, more: tuple[str, ...]) -> Wordings:
    return {**wordings, "train": wordings["train"] + more}


_MIXED: Mapping[str, Make] = {kind: Mixed(kind) for kind in STRINGS}
VARIED = Language(
    strings=_MIXED, frames=_with(FRAMES, MORE_FRAMES), switches=_with(SWITCHES, MORE_SWITCHES), turn=turned
)
