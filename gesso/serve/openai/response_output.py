"""The output items of a response, and the events that report them as they are written."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gesso.chat.calls import ToolCall
from gesso.serve.deltas import Delta

Item = dict[str, Any]
Event = tuple[str, dict[str, Any]]  # its type without "response.", and its fields


@dataclass(frozen=True)
class TextKind:
    """A kind of items with one part of text: the names of its fields and events."""

    prefix: str  # of its ids
    item: dict[str, Any]
    parts: str  # the item's field with its parts
    part: dict[str, Any]
    index: dict[str, int]
    part_event: str
    text_event: str
    text_fields: dict[str, Any] = field(default_factory=dict)


THOUGHT = TextKind(
    prefix="rs",
    item={"type": "reasoning"},
    parts="summary",
    part={"type": "summary_text"},
    index={"summary_index": 0},
    part_event="reasoning_summary_part",
    text_event="reasoning_summary_text",
)
MESSAGE = TextKind(
    prefix="msg",
    item={"type": "message", "role": "assistant"},
    parts="content",
    part={"type": "output_text", "annotations": [], "logprobs": []},
    index={"content_index": 0},
    part_event="content_part",
    text_event="output_text",
    text_fields={"logprobs": []},
)


@dataclass
class Output:
    """The items of one response, in the order in which they begin. An item ends when the next one begins.

    Call `add` with every delta and then `end`. Both yield the events to stream.
    """

    response: str  # the id of the response without its prefix, which all ids of its items contain
    items: list[Item] = field(default_factory=list)  # that have ended
    _open: TextKind | None = None
    _text: str = ""

    def add(self, delta: Delta) -> Iterator[Event]:
        if delta.thinking:
            yield from self._write(THOUGHT, delta.thinking)
        if delta.text:
            yield from self._write(MESSAGE, delta.text)
        for call in delta.calls:
            yield from self._call(call)

    def end(self, *, complete: bool) -> Iterator[Event]:
        """End the last item. A response without text and calls has an empty message."""
        if self._open is not MESSAGE and not self._has("message", "function_call"):
            yield from self._write(MESSAGE, "")
        yield from self._end_text("completed" if complete else "incomplete")

    def _has(self, *kinds: str) -> bool:
        return any(item["type"] in kinds for item in self.items)

    def _write(self, kind: TextKind, text: str) -> Iterator[Event]:
        if self._open is not kind:
            yield from self._end_text("completed")
            self._open, self._text = kind, ""
            yield "output_item.added", self._place | {"item": self._item(kind, "in_progress", [])}
            yield f"{kind.part_event}.added", self._part_place(kind) | {"part": {**kind.part, "text": ""}}
        self._text += text
        if text:
            yield f"{kind.text_event}.delta", self._part_place(kind) | {"delta": text, **kind.text_fields}

    def _end_text(self, status: str) -> Iterator[Event]:
        if self._open is None:
            return
        kind, self._open = self._open, None
        part = {**kind.part, "text": self._text}
        item = self._item(kind, status, [part])
        yield f"{kind.text_event}.done", self._part_place(kind) | {"text": self._text, **kind.text_fields}
        yield f"{kind.part_event}.done", self._part_place(kind) | {"part": part}
        yield "output_item.done", self._place | {"item": item}
        self.items.append(item)

    def _call(self, call: ToolCall) -> Iterator[Event]:
        yield from self._end_text("completed")
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        item = {
            "type": "function_call",
            "id": self._id("fc"),
            "call_id": f"call_{uuid.uuid4().hex[:24]}",
            "name": call.name,
            "arguments": arguments,
            "status": "completed",
        }
        place = self._place | {"item_id": item["id"]}
        yield "output_item.added", self._place | {"item": {**item, "arguments": "", "status": "in_progress"}}
        yield "function_call_arguments.delta", place | {"delta": arguments}
        yield "function_call_arguments.done", place | {"name": call.name, "arguments": arguments}
        yield "output_item.done", self._place | {"item": item}
        self.items.append(item)

    def _item(self, kind: TextKind, status: str, parts: list[dict[str, Any]]) -> Item:
        return {**kind.item, "id": self._id(kind.prefix), "status": status, kind.parts: parts}

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self.response}_{len(self.items)}"

    @property
    def _place(self) -> dict[str, Any]:
        return {"output_index": len(self.items)}

    def _part_place(self, kind: TextKind) -> dict[str, Any]:
        return {"item_id": self._id(kind.prefix), **self._place, **kind.index}
