"""One row of training data: what may stand in it, and how it becomes tokens with the responses marked."""

import json
import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from gesso.chat.messages import check_messages
from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError

Span = tuple[int, int]

FORMATS = {"messages": ("messages", "tools"), "prompt": ("prompt", "completion"), "text": ("text",)}
FIELDS = tuple(key for keys in FORMATS.values() for key in keys)
MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")


def parse(raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8-sig").strip()  # a byte order mark is no fault of the row
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: byte {raw[error.start]:#04x} at byte {error.start + 1} of the line") from error
    if not text:
        raise InputError("an empty line")
    try:
        row = json.loads(text, object_pairs_hook=_without_doubles)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise InputError(f"expected a JSON object, got a {type(row).__name__}")
    return {key: value for key, value in row.items() if value is not None}


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise InputError(f"{next(key for key in keys if keys.count(key) > 1)!r} is given twice in one object")
    return found


@lru_cache(maxsize=1024)
def _misspelt(key: str) -> str | None:
    return None if key in FIELDS else next(iter(get_close_matches(key.lower(), FIELDS, 1, 0.85)), None)


def tokenise(row: dict[str, Any], tokenizer: Tokenizer, eos: int) -> tuple[list[int], list[Span], int]:
    """Its tokens, the spans that are learnt, and how many responses are not."""
    if _format(row) == "messages":
        return _conversation(row["messages"], row.get("tools"), tokenizer)
    key = "text" if "text" in row else "completion"
    if not row[key].strip():
        raise InputError(f"{key} is empty: there is nothing to learn")
    before = tokenizer.encode(row.get("prompt", ""))
    if not before:
        raise InputError("nothing comes before the response, and this tokenizer has no bos token to begin with")
    response = tokenizer.encode(row[key], bos=False)
    if key == "text" and response[:1] == before:  # a bos of its own
        del response[0]
    if response[-1:] != [eos]:
        response.append(eos)
    tokens = before + response
    return tokens, [_checked(tokens, len(before), len(tokens), key, tokenizer)], 0


def _format(row: dict[str, Any]) -> str:
    for key in row:
        if meant := _misspelt(key):
            raise InputError(f"unknown key {key!r}: is {meant!r} meant?")
    formats = [name for name, keys in FORMATS.items() if row.keys() & set(keys)]
    if len(formats) != 1:
        found = ", ".join([key for key in FIELDS if key in row] or row) or "no key"
        raise InputError(f"expected either messages, or prompt and completion, or text; the row has {found}")
    for key in FORMATS[formats[0]]:
        if key not in row and key != "tools":
            raise InputError(f"{key} is missing or null; the row has {', '.join(row)}")
        if formats[0] != "messages" and not isinstance(row[key], str):
            raise InputError(f"{key}: expected text, got {type(row[key]).__name__}")
    return formats[0]


def _checked(tokens: Sequence[int], start: int, end: int, where: str, tokenizer: Tokenizer) -> Span:
    response = tokens[start:end]
    if len(response) < 2:
        raise InputError(f"{where} is empty: there is nothing to learn")
    if (place := response.index(response[-1])) < len(response) - 1:
        written = tokenizer.decode([response[-1]], special=True)
        raise InputError(f"{where} holds {written} before its end, at token {place + 1}: generation would stop there")
    return start, end


# --- conversations --------------------------------------------------------------------------------------------------

# Who may speak after whom; "calls" is an assistant message that calls tools.
FOLLOWS = {
    "start": ("system", "developer", "user"),
    "system": ("user",),
    "developer": ("user",),
    "user": ("assistant",),
    "assistant": ("user",),
    "calls": ("tool",),
    "tool": ("tool", "assistant"),
}
THOUGHT = "<|channel>"
THOUGHT_END = "<channel|>"
EMPTY_THOUGHT = re.compile(re.escape(THOUGHT) + r"\w*\s*" + re.escape(THOUGHT_END) + r"\s*\Z")


def _conversation(messages: Any, tools: Any, tokenizer: Tokenizer) -> tuple[list[int], list[Span], int]:
    """The text that the last response makes of the conversation, and the responses in it that can be learnt.

    The last one always can. An earlier one can if the tokens before it are those that generation would start from at
    that turn, and its own are those it should write then. Templates break this: they drop thoughts from the history,
    or open a turn with an empty thought that the history does not have. Such responses stay as context.

    Thinking is switched on if the last response thinks. Then responses without a thought are context as well: they
    would teach not to think when asked to.
    """
    messages = check_messages(messages)
    _check_order(messages)
    thinking = _thinks(messages[-1])
    before, response = _turn(messages, tools, thinking, tokenizer)
    tokens = before + response
    spans: list[Span] = []
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    for index in turns[:-1]:
        if _thinks(messages[index]) != thinking:
            continue
        before_it, it = _turn(messages[: index + 1], tools, thinking, tokenizer)
        start, end = len(before_it), len(before_it) + len(it)
        # What ends a response depends on what follows: a turn's end, or after a call the beginning of its result.
        if tokens[: end - 1] == before_it + it[:-1] and tokens[end - 1] in tokenizer.special_ids:
            spans.append(_checked(tokens, start, end, f"messages[{index}]", tokenizer))
    spans.append(_checked(tokens, len(before), len(tokens), f"messages[{turns[-1]}]", tokenizer))
    return tokens, spans, len(turns) - len(spans)


def _check_order(messages: Sequence[dict[str, Any]]) -> None:
    previous = "start"
    for index, message in enumerate(messages):
        role, where = message["role"], f"messages[{index}]"
        if role not in FOLLOWS[previous]:
            after = {"start": "at the start", "calls": "after a call of a tool"}.get(previous, f"after {previous!r}")
            raise InputError(f"{where}.role: expected {' or '.join(FOLLOWS[previous])} {after}, got {role!r}")
        previous = "calls" if message.get("tool_calls") else role
        if unknown := [key for key in message if key not in MESSAGE_FIELDS and message[key]]:
            raise InputError(
                f"{where}.{unknown[0]}: unknown, so it would not be learnt; a message has {', '.join(MESSAGE_FIELDS)}, "
                f"and a thought is written at the start of the content: {THOUGHT}thought\\n…{THOUGHT_END}"
            )
    if role != "assistant":
        raise InputError(f"the conversation ends with {role!r}: its last message must be the assistant's, to be learnt")


def _thinks(message: dict[str, Any]) -> bool:
    return str(message["content"]).lstrip().startswith(THOUGHT)


def _turn(
    messages: Sequence[dict[str, Any]], tools: Any, thinking: bool, tokenizer: Tokenizer
) -> tuple[list[int], list[int]]:
    """What generation starts from at the last message, and what it should write then, end token included."""
    message, where = messages[-1], f"messages[{len(messages) - 1}]"
    prompt = tokenizer.render(messages[:-1], tools=tools, thinking=thinking)
    whole = tokenizer.render(messages, tools=tools, thinking=thinking, generation_prompt=False)
    opening = prompt if whole.startswith(prompt) else EMPTY_THOUGHT.sub("", prompt)
    if not whole.startswith(opening):
        raise InputError(
            f"the chat template writes what comes before {where} in another way once it is answered, "
            "so what to learn cannot be told: write the row as prompt and completion"
        )
    written = whole[len(opening) :]
    answer = message["content"].strip()
    if _thinks(message):
        thought, tag, answer = (part.strip() for part in answer.partition(THOUGHT_END))
        # The template drops it, as from any history; but it is what the model writes.
        written = written if THOUGHT in written else thought + tag + written
    calls = [call["function"]["name"] for call in message.get("tool_calls", ())]
    if not answer and not calls:
        raise InputError(f"{where}.content is empty: there is nothing to learn")
    if missing := [part for part in (answer, *calls) if part not in written]:
        raise InputError(f"the chat template leaves out part of {where}: {missing[0][:40]!r}")
    response = tokenizer.encode(written, bos=False)
    end = next((end for end in range(len(response), 0, -1) if response[end - 1] in tokenizer.special_ids), 0)
    if not end or tokenizer.decode(response[end:]).strip():
        raise InputError(f"the chat template ends {where} with no special token: the model would not learn to stop")
    return tokenizer.encode(prompt, bos=False), response[:end]
