"""Words that fill the requests of the structured task, and values composed of them.

A word belongs to one split by its lower-case form, in every list; words composed of syllables do too. Digits and the
parts that join words into a value (Street, The, .com) belong to no split.
"""

import random
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

from gesso.eval.task import split_of

WORDS: dict[str, str] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
# Onsets, vowels and ends; - is an empty end. Ends that would spell rude words are left out.
SYLLABLES = (
    "b c ch d f g h j k l m n p qu r s sh t th v w y z br cl dr fl gr pl st tr",
    "a e i o u ai ea ia ie io oo ou",
    "- - - - l m n r nd rk st lt",
)
MADE_UP = 0.3  # share of words composed of syllables, so that a model cannot rely on names it has memorized


@cache
def known(group: str, split: str) -> tuple[str, ...]:
    return tuple(word for word in WORDS[group].split() if split_of(word.lower()) == split)


def made_up(split: str, rng: random.Random) -> str:
    while True:
        count = 1 + (rng.random() < 0.85) + (rng.random() < 0.3)
        word = "".join(rng.choice(part.split()) for _ in range(count) for part in SYLLABLES).replace("-", "")
        if len(word) > 2 and split_of(word) == split:
            return word


def word(group: str, split: str, rng: random.Random) -> str:
    if rng.random() >= MADE_UP:
        return rng.choice(known(group, split))
    invented = made_up(split, rng)
    return invented.capitalize() if group in ("first", "last", "city") else invented


Make = Callable[[str, random.Random], str]


def _title(split: str, rng: random.Random) -> str:
    adj, noun, city = (word(group, split, rng) for group in ("adj", "noun", "city"))
    forms = (f"The {adj} {noun}", f"{adj} {noun}", f"{noun} of {city}", f"A {noun} in {city}", f"The {noun}")
    return " ".join(part if part in ("of", "in") else part.capitalize() for part in rng.choice(forms).split())


def _file(split: str, rng: random.Random) -> str:
    noun = word("noun", split, rng)
    adj = word("adj", split, rng)
    ending = rng.choice(("txt", "csv", "png", "pdf"))
    forms = (f"{noun}.{ending}", f"{adj}_{noun}.{ending}", f"{noun}/{adj}.{ending}", f"{noun}{{}}.{ending}")
    return rng.choice(forms).format(rng.randint(1, 99))


def _email(split: str, rng: random.Random) -> str:
    user, host = word("first", split, rng).lower(), word("last", split, rng).lower()
    return rng.choice((f"{user}@{host}.com", f"{user}{rng.randint(1, 99)}@{host}.org"))


def _person(split: str, rng: random.Random) -> str:
    first, last = word("first", split, rng), word("last", split, rng)
    return first if rng.random() < 0.15 else f"{first} {last}"


def _code(split: str, rng: random.Random) -> str:
    letters = "".join(rng.choices("ABCDEFGHKLMNPRSTUVWXYZ", k=2))
    return f"{letters}-{rng.randint(10, 9999)}"


def _dish(split: str, rng: random.Random) -> str:
    form = rng.choice(("{} soup", "{} pie", "{} salad", "{} and {} stew", "{} with {}", "baked {}", "{} cake"))
    return form.format(word("food", split, rng), word("food", split, rng))


# Generators of string values, by kind.
STRINGS: dict[str, Make] = {
    "person": _person,
    "first": lambda split, rng: word("first", split, rng),
    "city": lambda split, rng: word("city", split, rng),
    "company": lambda split, rng: rng.choice(("{} Ltd", "{} Works", "{} and Sons")).format(word("last", split, rng)),
    "venue": lambda split, rng: rng.choice(("Cafe {}", "{} Grill", "Casa {}", "The {}")).format(
        word("last", split, rng)
    ),
    "street": lambda split, rng: (
        f"{rng.randint(1, 199)} {word('last', split, rng)} " + rng.choice(("Street", "Road", "Lane", "Avenue"))
    ),
    "email": _email,
    "title": _title,
    "thing": lambda split, rng: f"{word('adj', split, rng)} {word('noun', split, rng)}",
    "noun": lambda split, rng: word("noun", split, rng),
    "food": lambda split, rng: word("food", split, rng),
    "dish": _dish,
    "chore": lambda split, rng: f"{word('verb', split, rng)} the {word('noun', split, rng)}",
    "fault": lambda split, rng: (
        f"{word('noun', split, rng)} "
        + rng.choice(("does not open", "is too slow", "shows nothing", "crashes", "is missing"))
    ),
    "option": lambda split, rng: f"{word('noun', split, rng)}_{rng.choice(('size', 'limit', 'mode', 'rate'))}",
    "file": _file,
    "code": _code,
    "phone": lambda split, rng: f"{rng.randint(200, 999)}-{rng.randint(0, 9999):04}",
    "zip": lambda split, rng: f"{rng.randint(10000, 99999)}",
    "date": lambda split, rng: f"20{rng.randint(20, 39)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
    "time": lambda split, rng: f"{rng.randint(0, 23):02}:{rng.choice(range(0, 60, 5)):02}",
    "version": lambda split, rng: f"{rng.randint(0, 9)}.{rng.randint(0, 19)}.{rng.randint(0, 9)}",
}
