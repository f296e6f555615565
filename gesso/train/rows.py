"""Check one row of training data and turn it into tokens with the responses marked."""

import json
import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from gesso.chat.messages import check_messages
from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.train.formats import from_alpaca, from_sharegpt

Span = tuple[int, int]

# The keys that show the format of a row. All but `tools` must be there.
FORMATS = {
    "messages": ("messages", "tools"),
    "prompt": ("prompt", "completion"),
    "text": ("text",),
    "conversations": ("conversations",),
    "instruction": ("instruction", "output"),
}
FIELDS = tuple(key for keys in FORMATS.values() for key in keys)
CONVERTED = {"conversations": from_sharegpt, "instruction": from_alpaca}
MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")


def parse(raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8-sig").strip()  # accepts a byte order mark
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: byte {raw[error.start]:#04x} at byte {error.start + 1} of the line") from error
    if not text:
        raise InputError("an empty line")
    try:
        row = json.loads(text, object_pairs_hook=_without_duplicates)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise InputError(f"expected a JSON object, got a {type(row).__name__}")
    return {key: value for key, value in row.items() if value is not None}


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise InputError(f"{next(key for key in keys if keys.count(key) > 1)!r} is given twice in one object")
    return dict(pairs)


@lru_cache(maxsize=1024)
def _misspelled(key: str) -> str | None:
    """Return the field that an unknown key resembles, if any."""
    return None if key in FIELDS else next(iter(get_close_matches(key.lower(), FIELDS, 1, 0.85)), None)


def with_messages(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row in one of gesso's own formats: those of other tools become messages."""
    kind = format_of(row)
    return CONVERTED[kind](row) if kind in CONVERTED else row


def tokenise(row: dict[str, Any], tokenizer: Tokenizer, eos: int) -> tuple[list[int], list[Span], int]:
    """Return the tokens of a row, the spans to train on, and the number of responses that are context only.

    The images of messages have been read. Each is one token: see `image_rows.place_images`.
    """
    row = with_messages(row)
    if "messages" in row:
        return _conversation(row["messages"], row.get("tools"), tokenizer)
    key = "text" if "text" in row else "completion"
    if not row[key].strip():
        raise InputError(f"{key} is empty: there is nothing to train on")
    before = tokenizer.encode(row.get("prompt", ""))
    if not before:
        raise InputError("nothing comes before the response, and this tokenizer has no bos token to start with")
    response = tokenizer.encode(row[key], bos=False)
    if key == "text" and response[:1] == before:  # the text contains its own bos
        del response[0]
    if response[-1:] != [eos]:
        response.append(eos)
    tokens = before + response
    return tokens, [_span(tokens, len(before), len(tokens), key, tokenizer)], 0


def format_of(row: dict[str, Any]) -> str:
    for key in row:
        if meant := _misspelled(key):
            raise InputError(f"unknown key {key!r}: is {meant!r} meant?")
    formats = [name for name, keys in FORMATS.items() if row.keys() & set(keys) and name not in _repeated(row)]
    if len(formats) != 1:
        present = ", ".join([key for key in FIELDS if key in row] or row) or "no key"
        raise InputError(
            "expected either messages, or prompt and completion, or text, or conversations, or instruction and output; "
            f"the row has {present}"
        )
    for key in FORMATS[formats[0]]:
        if key not in row and key != "tools":
            raise InputError(f"{key} is missing or null; the row has {', '.join(row)}")
        if formats[0] in ("prompt", "text") and not isinstance(row[key], str):
            raise InputError(f"{key}: expected text, got {type(row[key]).__name__}")
    return formats[0]


def _repeated(row: dict[str, Any]) -> list[str]:
    """Return the formats to ignore: common datasets repeat a part of a row in another format, or share a key."""
    return [
        *(["messages"] if "conversations" in row and "messages" not in row else []),  # both have tools
        *(["prompt"] if "messages" in row and "completion" not in row else []),  # the first message once more
        *(["text"] if "instruction" in row else []),  # instruction and output, rendered
    ]


def _span(tokens: Sequence[int], start: int, end: int, where: str, tokenizer: Tokenizer) -> Span:
    """Return the span of a response after checking that it has content and one end token, its last."""
    response = tokens[start:end]
    if len(response) < 2:
        raise InputError(f"{where} is empty: there is nothing to train on")
    if (place := response.index(response[-1])) < len(response) - 1:
        written = tokenizer.decode([response[-1]], special=True)
        raise InputError(
            f"{where} contains {written} before its end, at token {place + 1}: generation would stop there"
        )
    return start, end


# --- conversations --------------------------------------------------------------------------------------------------

# The roles that may follow each role; "calls" is an assistant message that calls tools.
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
    """Return the whole conversation as tokens, the spans of the responses to train on, and the number of the others.

    The last response is always a target. An earlier one is a target if both the tokens before it and its own tokens
    are those of generation at that turn. Templates can break this: they drop thoughts from the history, or open a turn
    with an empty thought that the history does not have. Such responses are context only.

    Thinking is on if the last response contains a thought. Responses without one are then context only, because they
    would train the model not to think when thinking is on.
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
        earlier_before, earlier = _turn(messages[: index + 1], tools, thinking, tokenizer)
        start, end = len(earlier_before), len(earlier_before) + len(earlier)
        # The end token depends on the next message: end of turn, or after a tool call the start of its result.
        if tokens[: end - 1] == earlier_before + earlier[:-1] and tokens[end - 1] in tokenizer.special_ids:
            spans.append(_span(tokens, start, end, f"messages[{index}]", tokenizer))
    spans.append(_span(tokens, len(before), len(tokens), f"messages[{turns[-1]}]", tokenizer))
    return tokens, spans, len(turns) - len(spans)


def _check_order(messages: Sequence[dict[str, Any]]) -> None:
    previous = "start"
    for index, message in enumerate(messages):
        role, where = message["role"], f"messages[{index}]"
        if role not in FOLLOWS[previous]:
            after = {"start": "at the start", "calls": "after a tool call"}.get(previous, f"after {previous!r}")
            raise InputError(f"{where}.role: expected {' or '.join(FOLLOWS[previous])} {after}, got {role!r}")
        previous = "calls" if message.get("tool_calls") else role
        if role == "assistant" and not isinstance(message["content"], str):
            raise InputError(f"{where}.content: a response is text; only other messages can have images")
        if unknown := [key for key in message if key not in MESSAGE_FIELDS and message[key]]:
            raise InputError(
                f"{where}.{unknown[0]}: unknown, so it would be ignored; a message has {', '.join(MESSAGE_FIELDS)}, "
                f"and a thought goes at the start of the content: {THOUGHT}thought\\n…{THOUGHT_END}"
            )
    if role != "assistant":
        raise InputError(f"the conversation ends with {role!r}; it must end with a message of the assistant")


def _thinks(message: dict[str, Any]) -> bool:
    return str(message["content"]).lstrip().startswith(THOUGHT)


def _turn(
    messages: Sequence[dict[str, Any]], tools: Any, thinking: bool, tokenizer: Tokenizer
) -> tuple[list[int], list[int]]:
    """Return the prompt of the last message as tokens, and the response to it, end token included."""
    message, where = messages[-1], f"messages[{len(messages) - 1}]"
    prompt = tokenizer.render(messages[:-1], tools=tools, thinking=thinking)
    whole = tokenizer.render(messages, tools=tools, thinking=thinking, generation_prompt=False)
    opening = prompt if whole.startswith(prompt) else EMPTY_THOUGHT.sub("", prompt)
    if not whole.startswith(opening):
        raise InputError(
            f"the chat template renders the text before {where} differently once it is answered, "
            "so the response cannot be located; give the row as prompt and completion"
        )
    written = whole[len(opening) :]
    answer = message["content"].strip()
    if _thinks(message):
        thought, tag, answer = (part.strip() for part in answer.partition(THOUGHT_END))
        # The template drops the thought, as from any history, but the model has to generate it.
        written = written if THOUGHT in written else thought + tag + written
    calls = [call["function"]["name"] for call in message.get("tool_calls", ())]
    if not answer and not calls:
        raise InputError(f"{where}.content is empty: there is nothing to train on")
    if missing := [part for part in (answer, *calls) if part not in written]:
        raise InputError(f"the chat template leaves out part of {where}: {missing[0][:40]!r}")
    response = tokenizer.encode(written, bos=False)
    end = next((end for end in range(len(response), 0, -1) if response[end - 1] in tokenizer.special_ids), 0)
    if not end or tokenizer.decode(response[end:]).strip():
        raise InputError(f"the chat template ends {where} without a special token: the model would not learn to stop")
    return tokenizer.encode(prompt, bos=False), response[:end]
