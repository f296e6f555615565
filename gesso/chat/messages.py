"""Check the messages and tools of a conversation, and copy them to plain JSON types for the template.

Errors begin with the path of the field, such as messages[2].content.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from gesso.chat.image_parts import check_part, plain_text
from gesso.errors import InputError

SCHEMA_INSTRUCTION = "Answer in JSON by this schema: "
ROLES = ("system", "developer", "user", "assistant", "tool", "model")
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Return checked copies: roles and contents in one form, arguments decoded, tool results with their tool's name.

    A content is text, or a list of parts if it has images: see `gesso.chat.image_parts`.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise InputError("messages: expected a list of at least one message, like {'role': 'user', 'content': 'Hello'}")
    checked: list[dict[str, Any]] = []
    called: dict[str, str] = {}  # tool_call_id: name, of the calls so far
    for index, raw in enumerate(messages):
        where = f"messages[{index}]"
        content = _expect(raw, Mapping, where).get("content")
        message = _plain({**raw, "content": None}, where)  # images are not JSON
        role = message.get("role")
        if role not in ROLES:
            raise InputError(f"{where}.role: expected one of {', '.join(ROLES)}, got {role!r}")
        message["role"] = "assistant" if role == "model" else role
        if message.get("tool_calls") and message["role"] != "assistant":
            raise InputError(f"{where}.tool_calls: only an assistant message can call tools, got role {role!r}")
        calls = _expect(message.get("tool_calls") or [], list, f"{where}.tool_calls")
        message["tool_calls"] = [_check_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]
        called |= {call["id"]: call["function"]["name"] for call in message["tool_calls"] if call.get("id")}
        message["content"] = _check_content(content, message["role"], f"{where}.content")
        if role == "tool":
            message["name"] = message.get("name") or called.get(str(message.get("tool_call_id")))
            if message["name"] is None:
                raise InputError(f"{where}.tool_call_id: no earlier call has this id; pass its id or the tool's name")
            _check_name(message["name"], f"{where}.name")
        if not calls:
            del message["tool_calls"]
        checked.append(message)
    return checked


def with_schema(messages: Any, schema: Any) -> Any:
    """Return the messages with a JSON schema at the end of the last one that is not by the model or a tool.

    A constraint guarantees only the form: without the schema in its prompt, the model does not know what to write.
    """
    if not isinstance(schema, Mapping) or not isinstance(messages, list | tuple):
        return messages
    compact = json.dumps(_plain(schema, "json_schema"), ensure_ascii=False, separators=(",", ":"))
    added = f"\n{SCHEMA_INSTRUCTION}{compact}"
    for at in reversed(range(len(messages))):
        message = messages[at]
        if isinstance(message, Mapping) and message.get("role") in ("user", "system", "developer"):
            content = message.get("content")
            if isinstance(content, str):
                content += added
            elif isinstance(content, list):
                content = [*content, {"type": "text", "text": added}]
            return [*messages[:at], {**message, "content": content}, *messages[at + 1 :]]
    return messages


def tool_names(tools: Any) -> tuple[str, ...]:
    """Return the names of the tools that a model may call."""
    return tuple(tool["function"]["name"] for tool in check_tools(tools) or ())


def _check_content(content: Any, role: str, where: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return plain_text(content)
    if content is None and role == "assistant":  # as APIs answer if there are calls or a refusal only
        return ""
    if content is None:
        raise InputError(f"{where}: it is missing or null; give text, or a list of parts")
    if not isinstance(content, list | tuple):
        raise InputError(f"{where}: expected text or a list of parts, got {type(content).__name__}")
    parts = [check_part(part, f"{where}[{index}]") for index, part in enumerate(content)]
    joined: list[dict[str, Any]] = []  # texts that follow each other are one text
    for part in parts:
        if part["type"] == "text" and joined and joined[-1]["type"] == "text":
            part = {"type": "text", "text": joined.pop()["text"] + part["text"]}
        joined.append(part)
    if any(part["type"] == "image" for part in joined):
        return joined
    return joined[0]["text"] if joined else ""


def _check_call(call: Any, where: str) -> dict[str, Any]:
    function = _expect(_expect(call, dict, where).get("function"), dict, f"{where}.function")
    _expect(call.get("id") or "", str, f"{where}.id")
    _check_name(function.get("name"), f"{where}.function.name")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise InputError(f"{where}.function.arguments: not valid JSON: {error}") from error
    arguments = _plain(_expect(arguments, dict, f"{where}.function.arguments"), f"{where}.function.arguments")
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def check_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Return checked copies with a description and parameters; None without tools."""
    checked: list[dict[str, Any]] = []
    names: set[str] = set()
    for index, raw in enumerate(_expect([] if tools is None else tools, (list, tuple), "tools")):
        where = f"tools[{index}]"
        tool = _plain(_expect(raw, Mapping, where), where)
        function = _expect(tool.get("function", tool), dict, f"{where}.function")
        _check_name(function.get("name"), f"{where}.name")
        if function["name"] in names:
            raise InputError(f"{where}.name: {function['name']!r} is declared twice; rename one of them")
        names.add(function["name"])
        description = _expect(function.get("description") or "", str, f"{where}.description")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        _expect(parameters, dict, f"{where}.parameters")
        filled = {**function, "description": description, "parameters": parameters}
        checked.append({"type": "function", "function": filled})
    return checked or None


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str) or not _FUNCTION_NAME.fullmatch(name):
        raise InputError(f"{where}: expected a function name of letters, digits and _ . : / -, got {name!r}")


def _expect(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise InputError(f"{where}: expected a {' or '.join(k.__name__ for k in kinds)}, got {type(value).__name__}")
    return value


def _plain(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a copy with JSON types only, so that a template cannot reach the methods of other objects."""
    try:
        copied: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{where}: expected JSON values only: {error}") from error
    return copied
