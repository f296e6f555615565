"""Record a run: every draft of its canvases, in the form of the server's draft events."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gesso.api import Gesso
from gesso.engine.events import Draft, Event, Result
from gesso.serve.drafts import DraftEvents, drafted

CANDIDATES = 5  # per position, for the page's inspector


@dataclass(frozen=True)
class TracedRun:
    prompt: str
    drafts: list[dict[str, Any]]  # fields of docs/guides/serving.md, and `at`: seconds since the start of the run
    result: Result


def recorded(model: Gesso, events: Iterator[Event], drafts: list[dict[str, Any]]) -> Iterator[Event]:
    """Yield the events unchanged and append their drafts to the list."""
    draft_events, began = DraftEvents(model.tokenizer), time.perf_counter()
    for event in events:
        if isinstance(event, Draft):
            drafts.append({**draft_events.fields(drafted(event, 0)), "at": round(time.perf_counter() - began, 4)})
        yield event
