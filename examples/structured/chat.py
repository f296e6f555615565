"""Training rows for conversations: other topics, tool results, small talk, and several of them in turn."""

import random
from collections.abc import Iterator
from typing import Any

from examples.structured.off_topic import fill, off_topic
from examples.structured.small_talk import small_talk
from examples.structured.tool_results import LOOKUPS, lookup_tool, tool_exchange
from gesso.eval.structured.requests import compact, draw, make_item, make_tool, message
from gesso.eval.task import check_draw

# Shares of the rows; the others have several turns.
OFF_TOPIC, TOOL_RESULTS, SMALL_TALK = 0.5, 0.25, 0.05
# Lookups that answer no message of `off_topic`.
PRIVATE = ("weather", "forecast", "status", "gate", "balance", "phone number", "email", "room", "battery level")
MOST = 1200  # characters of a row as JSON: at most 512 tokens


def training_rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield rows of `messages`, and of `tools` where the conversation has some."""
    check_draw("train", count)
    for n in range(count):
        yield _row(random.Random(f"chat rows {seed} {n}"))


def _row(rng: random.Random) -> dict[str, Any]:
    kind = rng.random()
    while True:
        if kind < OFF_TOPIC:
            messages, tools = _off_topic(rng)
        elif kind < OFF_TOPIC + TOOL_RESULTS:
            messages, tools = _tool_result(rng)
        elif kind < OFF_TOPIC + TOOL_RESULTS + SMALL_TALK:
            messages, tools = _pair(*small_talk(rng)), []
        else:
            messages, tools = _several(rng)
        if rng.random() < 0.15:
            messages = [message("system", fill("{system}", rng)), *messages]
        row = {"messages": messages, "tools": tools} if tools else {"messages": messages}
        if len(compact(row)) <= MOST:
            return row


def _off_topic(rng: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a message on another topic. Declared tools do not have to be called."""
    tools = [_tool(rng) for _ in range(rng.choice((1, 1, 2)))] if rng.random() < 0.25 else []
    return _pair(*off_topic(rng, tools=bool(tools))), _distinct(tools)


def _tool_result(rng: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    tool, messages = tool_exchange(rng)
    others = [_tool(rng) for _ in range(rng.choice((0, 0, 1)))]
    tools = _distinct([tool, *others])
    return messages, rng.sample(tools, len(tools))


def _several(rng: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return two or three exchanges of different kinds. Tools are declared for all of them, or for none."""
    messages, tools = list[dict[str, Any]](), list[dict[str, Any]]()
    if rng.random() < 0.5:
        messages, tools = _tool_result(rng)
    least = len(messages) + 2 if tools else 4
    while len(messages) < least or rng.random() < 0.4:
        kind = rng.random()
        if kind < 0.3 and not tools:
            item = make_item("", "train", rng)
            more = [] if "tools" in item.meta else [*item.prompt, message("assistant", item.expected)]
        elif kind < 0.65:
            more = _pair(*off_topic(rng, tools=bool(tools)))
        else:
            more = _pair(*small_talk(rng))
        messages = [*messages, *more] if rng.random() < 0.5 else [*more, *messages]
    return messages, tools


def _tool(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.5:
        return make_tool(draw("train", rng, range(1, 4)), "train", rng)
    name, preposition, keys, *_ = rng.choice([lookup for lookup in LOOKUPS if lookup[0] in PRIVATE])
    return lookup_tool(name, preposition, rng.choice(keys.split()), rng)


def _distinct(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools without a second one of the same name."""
    return list({tool["function"]["name"]: tool for tool in reversed(tools)}.values())


def _pair(said: str, answer: str) -> list[dict[str, Any]]:
    return [message("user", said), message("assistant", answer)]
