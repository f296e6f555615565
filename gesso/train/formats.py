"""The formats of other tools, ShareGPT and Alpaca, converted to rows with messages.

    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}], "tools": [...]}
    {"instruction": "...", "input": "...", "output": "..."}

`input` is optional, and so is `system` in both formats. Errors name the field of the row as it was written.
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


def from_sharegpt(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with messages, and with tools if it has some."""
    turns = row["conversations"]
    if not isinstance(turns, list) or not turns:
        raise InputError(f"conversations: expected a list of at least one turn, got {shown(turns)}")
    messages = _system(row)
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
                raise InputError(f"{where}: a result of a tool without a function_call before it")
            messages.append({"role": "tool", "name": called.pop(0), "content": value})
        else:
            messages.append({"role": role, "content": value})
    tools = row.get("tools")
    return {"messages": messages, "tools": _json(tools, "tools") if isinstance(tools, str) and tools.strip() else tools}


def from_alpaca(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with messages: instruction and input are one message of the user."""
    for key in ("instruction", "input", "output"):
        if not isinstance(row.get(key, ""), str):
            raise InputError(f"{key}: expected text, got {type(row[key]).__name__}")
    question = "\n\n".join(part for key in ("instruction", "input") if (part := row.get(key, "")).strip())
    if not question:
        raise InputError("instruction is empty: there is nothing to answer")
    if not row["output"].strip():
        raise InputError("output is empty: there is nothing to train on")
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": row["output"]}]
    return {"messages": [*_system(row), *turns]}


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
