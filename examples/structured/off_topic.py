"""Messages that gesso-mini cannot answer, with an answer that says so: see `off_topic.toml`."""

import random
import re
import string
import tomllib
from pathlib import Path

from examples.mini.questions import is_held_out
from gesso.eval.structured.words import STRINGS, made_up, word

_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_SLOT = re.compile(r"\{(\w+)\}")
WITHOUT_TOOLS = ("now", "talk", "code")  # kinds that a declared tool could serve
ANSWERS: dict[str, str] = {name: kind["answer"].format(offer=_DATA["offer"]) for name, kind in _DATA["kind"].items()}
_SAYS = {name: re.split(r"[|\n]", kind["says"].strip()) for name, kind in _DATA["kind"].items()}
_LISTS = {name: re.split(r"[|\n]", text.strip()) for name, text in _DATA["words"].items()}
_QUESTION = re.compile(r"(what|why|how|who|when|where|which|is|are|can|do|does|did|should|will|would|have|any)\b", re.I)


def off_topic(rng: random.Random, *, tools: bool = False) -> tuple[str, str]:
    """Return a message and its answer. With `tools`, the message asks for nothing that a tool could do."""
    kinds = [name for name in _SAYS if not (tools and name in WITHOUT_TOOLS)]
    while True:
        kind = rng.choices(kinds, [_DATA["kind"][name]["weight"] for name in kinds])[0]
        said = _sentence(kind, rng)
        if rng.random() < 0.12:  # a longer message: the last sentence is the one to answer
            told = (_sentence("statement", rng) for _ in range(rng.randint(1, 3)))
            said = rng.choice((" ", " ", "\n")).join((*told, said))
        if not is_held_out(said):
            return said, ANSWERS[kind]


def _sentence(kind: str, rng: random.Random) -> str:
    """Return a message as people type it: with or without capitals and punctuation, and with some typing errors."""
    text = fill(rng.choice(_SAYS[kind]), rng)
    if rng.random() < 0.1:
        text = f"{rng.choice(_LISTS['before'])} {text}"
    if rng.random() < 0.06:
        text += rng.choice(_LISTS["after"])
    asks = bool(_QUESTION.match(text))
    style = rng.random()
    if style < 0.7:
        return text[0].upper() + text[1:] + ("?" if asks else rng.choice("..!"))
    if style < 0.78:
        text = _mistyped(text, rng)
    elif style < 0.8:
        text = text.upper()
    text += rng.choice(("", "", "", "?" if asks else ".", "...", "!", "??" if asks else "!!", " ?" if asks else " !"))
    return rng.choice((text, text.lower(), text[0].upper() + text[1:]))


def fill(text: str, rng: random.Random) -> str:
    """Replace the slots of a text by random words, until none is left."""
    while _SLOT.search(text):
        text = _SLOT.sub(lambda slot: _word(slot[1], rng), text)
    return text


def _word(name: str, rng: random.Random) -> str:
    if name in _LISTS:
        return rng.choice(_LISTS[name])
    if name == "a":
        thing = fill(rng.choice(("{noun}", "{noun}", "{adj} {noun}", "{animal}", "{food}")), rng)
        return f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"
    if name == "number":
        number = rng.randint(0, 10 ** rng.randint(1, 4))
        return f"{number}.{rng.randint(1, 9)}" if rng.random() < 0.05 else str(number)
    if name == "letters":
        return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(1, 8)))
    if name == "symbols":
        return "".join(rng.choices("?!.,;:-*#&+=", k=rng.randint(1, 4)))
    if name == "made":
        return made_up("train", rng)
    if name == "Title":
        return STRINGS["title"]("train", rng)
    return word("first" if name == "name" else name, "train", rng)


def _mistyped(text: str, rng: random.Random) -> str:
    """Return the text with one letter after the first left out, doubled or swapped with the next."""
    at = rng.randint(1, len(text))
    two = text[at : at + 2]
    return text[:at] + rng.choice((two[1:], two[:1] + two, two[::-1])) + text[at + 2 :]
