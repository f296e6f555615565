"""The conversation of a response: its input items, checked and in one form, and the chat messages that they mean.

An input item can refer to an output item of any stored response. The id of an output item contains that of its
response (`msg_ID_0` belongs to `resp_ID`), so the store needs no index of items.
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gesso.chat.image_parts import REFUSED
from gesso.checks import shown
from gesso.errors import InputError
from gesso.images.budgets import BUDGETS, DETAILS
from gesso.images.urls import data_url
from gesso.serve.errors import ApiError
from gesso.serve.image_parts import content_of, image_part
from gesso.serve.openai.response_fields import ResponseFields

Item = dict[str, Any]
Fetch = Callable[[str | None, list[str]], list[list[Item]]]
ROLES = ("user", "assistant", "system", "developer")
TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}  # field with the text
REFERRED_RESPONSES = 1000  # of one request
TYPES = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
_OUTPUT_ITEM = re.compile(r"(?:msg|rs|fc)_([0-9a-f]{32})_[0-9]{1,9}")


def conversation(fields: ResponseFields, fetch: Fetch) -> list[Item]:
    """Return the items of the previous response's conversation and those of this request, without thoughts."""
    given = [{"role": "user", "content": fields.input}] if isinstance(fields.input, str) else fields.input
    previous = fields.previous_response_id
    responses = {_response_of(item.get("id")) for item in given if _type_of(item) == "item_reference"}
    if len(responses) > REFERRED_RESPONSES:
        raise InputError(f"input: it refers to items of more than {REFERRED_RESPONSES} responses; send the items")
    lists = fetch(previous, sorted(responses)) if previous is not None or responses else []
    earlier, referenced = (lists[:2], lists[2:]) if previous is not None else ([], lists)
    stored = {item["id"]: item for items in referenced for item in items}
    read = [_read_item(item, f"input[{index}]", stored) for index, item in enumerate(given)]
    conversation = [item for items in [*earlier, read] for item in items if item["type"] != "reasoning"]
    if not conversation:
        raise InputError("input: it is empty; give a text or at least one message")
    return conversation


def chat_messages(items: Sequence[Item], instructions: str | None) -> list[dict[str, Any]]:
    """Return the messages of a chat. A call belongs to the assistant's message before it."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    called: set[str] = set()
    for item in items:
        if item["type"] == "message":
            messages.append({"role": item["role"], "content": _chat_content(item["content"])})
        elif item["type"] == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            function = {"name": item["name"], "arguments": item["arguments"]}
            messages[-1].setdefault("tool_calls", []).append({"id": item["call_id"], "function": function})
            called.add(item["call_id"])
        else:
            if item["call_id"] not in called:
                raise InputError(
                    f"input: no function_call has the call_id {item['call_id'][:80]!r} of a function_call_output; "
                    "send the call before its output, or give previous_response_id"
                )
            output = item["output"] if isinstance(item["output"], str) else _chat_content(item["output"])
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
    return messages


def with_contents(items: Sequence[Item], fetched: Mapping[str, bytes]) -> list[Item]:
    """Return items to store, with the contents of fetched images in place of their URLs."""

    def stored(part: Item) -> Item:
        if part["type"] != "input_image":
            return part
        url = part["image_url"]
        url = data_url(fetched[url]) if url in fetched else url
        return {"type": "input_image", "image_url": url, "detail": part["detail"], "tokens": part["tokens"]}

    def changed(item: Item) -> Item:
        found = {name: item[name] for name in ("content", "output") if isinstance(item.get(name), list)}
        return {**item, **{name: [stored(part) for part in parts] for name, parts in found.items()}}

    return [changed(item) for item in items]


def _chat_content(parts: Sequence[Item]) -> str | list[Item]:
    return content_of(
        {"type": "text", "text": part["text"]}
        if part["type"] != "input_image"
        else image_part(part["image_url"], part.get("where", "previous_response_id"), part["tokens"])
        for part in parts
    )


def _type_of(item: Item) -> Any:
    """Return the type of an item. Messages and references may leave it out."""
    return item.get("type") or ("message" if "role" in item else "item_reference")


def _response_of(id: Any) -> str:
    """Return the id of the response that an item of its output belongs to."""
    if not (isinstance(id, str) and (match := _OUTPUT_ITEM.fullmatch(id))):
        raise _item_not_found(id)
    return f"resp_{match[1]}"


def _item_not_found(id: Any) -> ApiError:
    message = f"input: there is no stored item {id!r:.100}; send the item itself"
    return ApiError(404, message, param="input", code="item_not_found")


def _read_item(item: Item, where: str, known: dict[str, Item]) -> Item:
    """Check an item and return it with the fields that have a meaning."""
    kind = _type_of(item)
    match kind:
        case "item_reference":
            if item["id"] not in known:
                raise _item_not_found(item["id"])
            return known[item["id"]]
        case "message":
            if (role := item.get("role")) not in ROLES:
                raise InputError(f"{where}.role: expected one of {', '.join(ROLES)}, got {role!r:.80}")
            parts = _parts(item.get("content"), f"{where}.content", "output" if role == "assistant" else "input")
            return {"type": kind, "id": _id(item, "msg"), "role": role, "content": parts}
        case "function_call":
            names = ("call_id", "name", "arguments")
            call = {name: _string(item.get(name), f"{where}.{name}") for name in names}
            _check_arguments(call["arguments"], f"{where}.arguments")
            return {"type": kind, "id": _id(item, "fc"), **call}
        case "function_call_output":
            call_id = _string(item.get("call_id"), f"{where}.call_id")
            parts = _parts(item.get("output"), f"{where}.output", "input")
            has_image = any(part["type"] == "input_image" for part in parts)
            output = parts if has_image else "".join(part["text"] for part in parts)
            return {"type": kind, "id": _id(item, "fco"), "call_id": call_id, "output": output}
        case "reasoning":
            return {"type": kind}  # thoughts of earlier turns are not part of the prompt
    raise InputError(f"{where}.type: expected one of {', '.join(TYPES)}, got {kind!r:.80}")


def _id(item: Item, prefix: str) -> str:
    given = item.get("id")
    return given[:80] if isinstance(given, str) else f"{prefix}_{uuid.uuid4().hex}"


def _parts(content: Any, where: str, prefix: str) -> list[Item]:
    """Return content as parts: texts, of which no two follow each other, and images."""
    given = [{"type": "text", "text": _string(content, where)}] if not isinstance(content, list) else content
    parts: list[Item] = []
    for index, part in enumerate(given):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "input_image":
            parts.append(_image(part, f"{where}[{index}]"))
            continue
        if not isinstance(kind, str) or kind not in TEXT_PARTS:
            reason = REFUSED.get(str(kind), "expected {'type': 'input_text', 'text': ...} or an input_image")
            raise InputError(f"{where}[{index}]: {reason}")
        text = _string(part.get(TEXT_PARTS[kind]), f"{where}[{index}].{TEXT_PARTS[kind]}")
        if parts and "text" in parts[-1]:
            text = parts.pop()["text"] + text
        parts.append({"type": f"{prefix}_text", "text": text})
    return parts or [{"type": f"{prefix}_text", "text": ""}]


def _image(part: Item, where: str) -> Item:
    """Check an image. `tokens`, our own field, takes precedence over `detail`."""
    if part.get("file_id") is not None:
        raise InputError(f"{where}.file_id: this server stores no files; send the image in image_url")
    url = _string(part.get("image_url"), f"{where}.image_url")
    detail = part.get("detail") or "auto"
    if not isinstance(detail, str) or detail not in DETAILS:
        raise InputError(f"{where}.detail: expected one of {', '.join(DETAILS)}, got {shown(detail)}")
    tokens = DETAILS[detail] if part.get("tokens") is None else part["tokens"]
    if isinstance(tokens, bool) or tokens not in BUDGETS:
        raise InputError(f"{where}.tokens: expected one of {', '.join(map(str, BUDGETS))}, got {shown(tokens)}")
    return {"type": "input_image", "image_url": url, "detail": detail, "tokens": tokens, "where": f"{where}.image_url"}


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: expected a string, got {type(value).__name__}")
    return value


def _check_arguments(arguments: str, where: str) -> None:
    try:
        values = json.loads(arguments or "{}")
    except ValueError as error:
        raise InputError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{where}: expected a JSON object, got {type(values).__name__}")
