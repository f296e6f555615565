"""Results of the public methods. Those of `infill` and `edit` are in `gesso.infill.results`."""

from collections.abc import Mapping
from dataclasses import dataclass

from gesso.chat.calls import ToolCall
from gesso.engine.events import Result, Usage


@dataclass(frozen=True)
class ChatResult(Result):
    """The answer to a conversation. `text` has neither the thoughts nor the tool calls."""

    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed_calls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """The most probable of several choices. Both mappings have one entry per choice, in the given order."""

    choice: str
    index: int
    probabilities: Mapping[str, float]  # given that it is one of the choices; they add up to 1
    scores: Mapping[str, float]  # log-probability of each choice by itself, in nats
    usage: Usage
