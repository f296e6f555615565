"""The decide task: which tool does a request in plain words need?

The items are those of the structured task with several tools. The prompt ends where the name of the tool follows.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, ClassVar

from gesso.eval.structured.task import Structured
from gesso.eval.task import Item, check_draw

OPENING = "<|tool_call>call:"


@dataclass(frozen=True, kw_only=True)
class Decide:
    name: ClassVar[str] = "decide"
    scores: ClassVar[tuple[str, ...]] = ("right",)
    options: ClassVar[Mapping[str, Any]] = MappingProxyType({"max_new_tokens": 64})

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        check_draw(split, count)
        drawn = Structured().items(split, sys.maxsize, seed)
        return islice((_item(one) for one in drawn if _is_open(one)), count)

    def score(self, item: Item, output: str) -> dict[str, float]:
        """Return `right`: whether the output is the expected choice."""
        return {"right": float(output == item.expected)}


def _names(item: Item) -> list[str]:
    return [tool["function"]["name"] for tool in item.meta.get("tools", ())]


def _is_open(item: Item) -> bool:
    """Return whether an item has several tools with different names."""
    return len(_names(item)) == len(set(_names(item))) > 1


def _item(item: Item) -> Item:
    choices = tuple(f"{name}{{" for name in _names(item))  # the arguments follow the bracket
    return replace(
        item,
        expected=f"{item.meta['call']}{{",
        meta={"tools": item.meta["tools"]},
        constraint={"choice": choices},
        opening=OPENING,
        choices=choices,
    )
