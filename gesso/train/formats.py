"""The formats of other tools, ShareGPT and Alpaca, converted to rows with messages.

    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}], "tools": [...]}
    {"instruction": "...", "input": "...", "output": "..."}

`input` is optional, and so is `system` in both formats. A ShareGPT row may have `image` or `images`, as LLaVA's rows
have: paths or `data:` URLs, one for each `<image>` in the turns of the user. Errors name the field of the row as it was
written.
"""

import json
from collections.abc import Mapping
from typing import Any

from gesso.checks import shown
from gesso.errors import InputError

# Names of the roles in ShareGPT rows; `conversations` with role and content, as some datasets have, are read too.
ROLES = {
    **dict.fromkeys(("system",), "system"),
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bot"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response", "tool_response"), "tool"),
    **dict.fromkeys(("function_call", "tool_call"), "calls"),
}

IMAGE = "<image>"


def from_sharegpt(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with messages, and with tools if it has some."""
    turns = row["conversations"]
    if not isinstance(turns, list) or not turns:
        raise InputError(f"conversations: expected a list of at least one turn, got {shown(turns)}")
    messages = _system(row)
    images = _images(row)
    called: list[str] = []  # names of tools whose results have not come yet
    for index, turn in enumerate(turns):
        where = f"conversations[{index}]"
        role, value = _turn(turn, where)
        if role == "calls":
            calls = _calls(value, f"{where}.value")
            called = [call["function"]["name"] for call in calls]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        elif role == "tool":
            if not called:
                raise InputError(f"{where}: a tool result without a function_call before it")
            messages.append({"role": "tool", "name": called.pop(0), "content": value})
        else:
            content = _with_images(value, images) if role == "user" and images else value
            messages.append({"role": role, "content": content})
    if images:
        raise InputError(f"images: {len(images)} have no {IMAGE} in a turn of the user; write one {IMAGE} per image")
    tools = row.get("tools")
    return {"messages": messages, "tools": _json(tools, "tools") if isinstance(tools, str) and tools.strip() else tools}


def from_alpaca(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with messages: instruction and input are one message of the user."""
    for key in ("instruction", "input", "output"):
        if not isinstance(row.get(key, ""), str):
            raise InputError(f"{key}: expected text, got {type(row[key]).__name__}")
    parts = (row.get("instruction", ""), row.get("input", ""))
    question = "\n\n".join(part for part in parts if part.strip())
    if not question:
        raise InputError("instruction is empty: there is nothing to answer")
    if not row["output"].strip():
        raise InputError("output is empty: there is nothing to train on")
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": row["output"]}]
    return {"messages": [*_system(row), *turns]}


def _images(row: Mapping[str, Any]) -> list[Any]:
    """Return the images of the row, which are listed outside its turns."""
    given = row.get("images", row.get("image"))
    if given is None:
        return []
    images = list(given) if isinstance(given, list) else [given]
    if not all(isinstance(image, str) for image in images):
        raise InputError("images: expected paths or data: URLs")
    return images


def _with_images(value: str, images: list[Any]) -> str | list[dict[str, Any]]:
    """Return the content of a turn with the next of `images` in place of each mark; they are removed from the list."""
    texts = value.split(IMAGE)
    if len(texts) == 1:
        return value
    if len(texts) - 1 > len(images):
        raise InputError(f"images: a turn has {len(texts) - 1} {IMAGE}, but only {len(images)} images are left")
    parts = [{"type": "text", "text": texts[0]}]
    for text in texts[1:]:
        parts += [{"type": "image", "image": images.pop(0)}, {"type": "text", "text": text}]
    return [part for part in parts if part["type"] == "image" or part["text"].strip()]


def _system(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = row.get("system") or ""
    if not isinstance(given, str):
        raise InputError(f"system: expected text, got {type(given).__name__}")
    return [{"role": "system", "content": given}] if given.strip() else []


def _turn(turn: Any, where: str) -> tuple[str, str]:
    if not isinstance(turn, Mapping):
        raise InputError(f"{where}: expected an object with from and value, got {shown(turn)}")
    name, value = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if not isinstance(name, str) or (role := ROLES.get(name.lower())) is None:
        raise InputError(f"{where}.from: expected one of {', '.join(ROLES)}, got {shown(name)}")
    if not isinstance(value, str):
        raise InputError(f"{where}.value: expected text, got {type(value).__name__}")
    return role, value


def _calls(value: str, where: str) -> list[dict[str, Any]]:
    """Return the calls that a function_call turn has as JSON: one object with name and arguments, or a list."""
    given = _json(value, where)
    calls = given if isinstance(given, list) else [given]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise InputError(f"{where}: expected a JSON object with name and arguments, got {shown(value)}")
    functions = ({"name": call["name"], "arguments": call.get("arguments") or {}} for call in calls)
    return [{"type": "function", "function": function} for function in functions]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON: {error}") from None
