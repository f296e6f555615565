"""A run to be looked at later: every step of its canvases, as the server's draft events have them."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gesso.api import Gesso
from gesso.engine.events import Draft, Event, Result
from gesso.serve.drafts import DraftEvents, drafted

CANDIDATES = 5  # of every position, for those who point at it


@dataclass(frozen=True)
class Run:
    prompt: str
    drafts: list[dict[str, Any]]  # fields of docs/serving.md, and `at`: seconds since the run began
    result: Result


def recorded(model: Gesso, events: Iterator[Event], drafts: list[dict[str, Any]]) -> Iterator[Event]:
    """The events as they are; what their drafts show is added to the list."""
    told, began = DraftEvents(model.tokenizer), time.perf_counter()
    for event in events:
        if isinstance(event, Draft):
            drafts.append({**told.fields(drafted(event, 0)), "at": round(time.perf_counter() - began, 4)})
        yield event
