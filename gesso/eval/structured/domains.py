"""Topics of the structured task, from `domains.toml`: fields, their names in a schema, and their wordings."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gesso.eval.task import SPLITS

Wordings = dict[str, tuple[str, ...]]  # by split


@dataclass(frozen=True, eq=False)
class Field:
    keys: tuple[str, ...]  # synonyms; a schema uses one of them
    kind: str  # of value: a key of words.STRINGS, or `int 1 9`, `num 1 9`, `list KIND`, `enum a b c`, `bool`
    says: Wordings  # {} is the value; a bool has `when true ~ when false`


@dataclass(frozen=True, eq=False)
class Domain:
    name: str
    tools: tuple[str, ...]
    asks: Wordings  # the requested action: a verb and its object
    fields: tuple[Field, ...]
    nest: tuple[str, ...] = ()  # names of an object that may contain some of the fields
    nested: tuple[str, ...] = ()  # those fields, by their first key


def wordings(text: str) -> Wordings:
    parts = [tuple(one.strip() for one in part.split("|")) for part in text.split("//")]
    return dict(zip(SPLITS, parts, strict=True))


def _domain(row: dict[str, Any]) -> Domain:
    fields = tuple(Field(tuple(keys.split()), kind, wordings(says)) for keys, kind, says in row["fields"])
    names, _, nested = row.get("nest", "").partition(":")
    tools, asks = tuple(row["tools"].split()), wordings(row["asks"])
    return Domain(row["name"], tools, asks, fields, tuple(names.split()), tuple(nested.split()))


_DATA = tomllib.loads(Path(__file__).with_name("domains.toml").read_text(encoding="utf-8"))
FRAMES, SWITCHES, WRAPPERS = (wordings(_DATA[name]) for name in ("frames", "switches", "wrappers"))
THINGS = (_DATA["things"], _DATA["verbs"])
ATTRIBUTES: dict[str, str] = _DATA["attributes"]  # names by kind
DOMAINS = tuple(_domain(row) for row in _DATA["domain"])
