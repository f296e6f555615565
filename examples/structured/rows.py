"""Training rows for structured output: requests of the train split with their answers, and some small talk."""

import random
from collections.abc import Iterator
from typing import Any

from examples.structured.small_talk import small_talk
from gesso.eval.structured.requests import draw, make_item, make_tool, message
from gesso.eval.task import Item, check_draw

SMALL_TALK = 0.03  # share of rows: a model trained on JSON only would answer a greeting with JSON


def training_rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield rows of `messages`, and of `tools` where the request has some."""
    check_draw("train", count)
    for n in range(count):
        rng = random.Random(f"structured rows {seed} {n}")
        yield _small_talk(rng) if rng.random() < SMALL_TALK else row_of(make_item("", "train", rng))


def row_of(item: Item) -> dict[str, Any]:
    """Return an item of the structured task with its answer."""
    if "tools" not in item.meta:
        return {"messages": [*item.prompt, message("assistant", item.expected)]}
    call = {"type": "function", "function": {"name": item.meta["call"], "arguments": item.meta["value"]}}
    answer = {**message("assistant", ""), "tool_calls": [call]}
    return {"messages": [*item.prompt, answer], "tools": list(item.meta["tools"])}


def _small_talk(rng: random.Random) -> dict[str, Any]:
    question, answer = small_talk(rng)
    row: dict[str, Any] = {"messages": [message("user", question), message("assistant", answer)]}
    if rng.random() < 0.25:  # declared tools do not have to be called
        row["tools"] = [make_tool(draw("train", rng, range(1, 4)), "train", rng)]
    return row
