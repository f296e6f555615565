"""Split the model's text into the text to show, its thoughts and its tool calls.

`parse` is a pure function of the text so far, which may be cut at any character. While more text arrives, `text` and
`thinking` only grow, and a call appears once, when it is complete. Two rules ensure this:

- A tag is a tag everywhere, even inside a string: each is one special token, which the model never spells out. So
  `<tool_call|>` ends a call whose quotes are still open, and the rest of the answer is not lost. For the same reason
  `format_value` escapes strings that contain tags.
- A trailing `<` that could become a tag is held back until the next character decides. An answer that the length limit
  cuts right there loses that character. A finished answer ends with a tag and loses nothing.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gesso.errors import InputError

QUOTE = '<|"|>'
MAX_DEPTH = 64  # of nested objects and arrays; deeper nesting is a model that repeats "["

# Tags that end the turn. `<|tool_response>` is a stop token: the tool continues the text.
_TURN_ENDS = ("<turn|>", "<|turn>", "<|tool_response>")
# Tags without a meaning in an answer. They are dropped, as in decoding without special tokens.
_STRAY = ("<tool_call|>", "<channel|>", "<tool_response|>", "<|tool>", "<tool|>", "<|think|>", QUOTE)
# Dropped only at the very end: an answer may explain what `<eos>` means.
_PADDING = ("<eos>", "<pad>", "<bos>")
_TAGS = ("<|channel>", "<|tool_call>", *_TURN_ENDS, *_STRAY)


def _any_of(*tags: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tags)))


_TAG = _any_of(*_TAGS)
_TURN_END = _any_of(*_TURN_ENDS)
_THOUGHT_END = _any_of("<channel|>", "<|channel>")
_CALL_END = _any_of("<tool_call|>", "<|tool_call>")
_CHANNEL_NAME = re.compile(r"[ \t]*(\w*)[ \t]*(\n?)")
_CALL_NAME = re.compile(r"\s*call\s*:\s*([^\s{}]+)\s*")
_NEWLINES = re.compile(r"\n*")
# One token of an argument list. Each character is consumed once, broken quotes included (the last branch), so that the
# time is linear for every input.
_ARGUMENT = re.compile(
    r"""(?P<bracket>[{\[\]}])
      | <\|"\|> (?P<quoted>.*?) <\|"\|>
      | (?P<json>"(?:[^"\\]|\\.)*+")
      | (?P<bare>[^\s:,{}\[\]"<]++) (?P<colon>\s*+:)?
      | (?P<broken>["<].*)""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    text: str
    thinking: str
    tool_calls: tuple[ToolCall, ...]
    complete: bool  # False while a thought, a channel, a call or half a tag is open
    malformed: tuple[str, ...] = ()  # the source of calls that are closed, but cannot be parsed


class Decode(Protocol):
    def __call__(self, tokens: Sequence[int], *, special: bool = False) -> str: ...


def read(tokens: Sequence[int], text: str, decode: Decode) -> Answer:
    """Return the answer in these tokens. `text` is their text up to a stop string, which may end inside a token."""
    after_stop = decode(tokens)[len(text) :]
    return parse(decode(tokens, special=True).removesuffix(after_stop))


def parse(raw: str) -> Answer:
    """Return the answer in a text with tags, which may be incomplete."""
    end, turn_over, half_tag = _extent(raw)
    text: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    malformed: list[str] = []
    is_open = half_tag
    in_channel = False
    at = 0
    while tag := _TAG.search(raw, at, end):
        text.append(raw[at : tag.start()])
        at = tag.end()
        if tag[0] == "<|channel>":
            name = _match(_CHANNEL_NAME, raw, at, end)
            if name.end() == end and not turn_over:
                is_open, at = True, end  # "thought" may become "thoughtful"
            elif name[1].lower() == "thought":
                close = _THOUGHT_END.search(raw, name.end(), end)
                thoughts.append(raw[name.end() : close.start() if close else end])
                is_open = is_open or close is None
                at = _after(close, "<channel|>", raw, end)
            else:
                # Only the channel "thought" is documented as hidden. The text of any other channel, such as "final", is
                # shown: a superfluous label does less harm than a missing answer.
                in_channel = True
                at = name.end() if name[2] else at
        elif tag[0] == "<|tool_call>":
            close = _CALL_END.search(raw, at, end)
            if close or turn_over:
                source = raw[at : close.start() if close else end]
                try:
                    calls.append(_read_call(source))
                except ValueError:
                    malformed.append(source)
            else:
                is_open = True
            at = _after(close, "<tool_call|>", raw, end)
        elif tag[0] == "<channel|>":
            in_channel = False
    text.append(raw[at:end])
    thinking = "\n".join(filter(None, map(str.strip, thoughts)))
    return Answer("".join(text), thinking, tuple(calls), not (is_open or in_channel), tuple(malformed))


def format_call(call: ToolCall) -> str:
    """Return a call in the model's own syntax, which `parse` reads back."""
    if not isinstance(call.arguments, dict) or not re.fullmatch(r"[^\s{}<>]+", call.name):
        raise InputError(
            f"cannot format a call of {call.name!r}: expected a name without spaces or brackets and a dict of arguments"
        )
    return f"<|tool_call>call:{call.name}{format_value(call.arguments)}<tool_call|>"


def format_value(value: Any, depth: int = 0) -> str:
    """Return a JSON value in the model's own syntax. `chat_template.jinja` has the same rules as macros."""
    if isinstance(value, str):
        return _format_string(value)
    if isinstance(value, dict | list | tuple) and depth >= MAX_DEPTH:
        raise InputError(f"a tool argument is nested deeper than {MAX_DEPTH} levels; flatten it")
    if isinstance(value, dict):
        items = (f"{format_key(key)}:{format_value(item, depth + 1)}" for key, item in value.items())
        return "{" + ",".join(items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(format_value(item, depth + 1) for item in value) + "]"
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"the tool argument {value!r} is not a JSON value: {error}") from error


def _format_string(text: str) -> str:
    if "<|" in text or "|>" in text:  # reads as a tag, which JSON can escape, but the model's own quotes cannot
        return json.dumps(text, ensure_ascii=False).replace("<", "\\u003c")
    return f"{QUOTE}{text}{QUOTE}"


def format_key(key: Any) -> str:
    """Return a key of an object in the model's own syntax."""
    if not isinstance(key, str):
        raise InputError(f"the key {key!r} of a tool argument must be a string")
    return key if key.replace("-", "_").isidentifier() else _format_string(key)


def _extent(raw: str) -> tuple[int, bool, bool]:
    """Return the end of the answer, whether the turn ends there, and whether half a tag after it is held back."""
    turn_end = _TURN_END.search(raw)
    end = turn_end.start() if turn_end else len(raw)
    half_tag = False
    if not turn_end and (last := raw.rfind("<")) >= 0:
        tail = raw[last : last + 20]
        half_tag = len(raw) - last < 20 and any(tag != tail and tag.startswith(tail) for tag in (*_TAGS, *_PADDING))
        end = last if half_tag else end
    while padding := next((tag for tag in _PADDING if raw.endswith(tag, 0, end)), None):
        end -= len(padding)
    return end, turn_end is not None, half_tag


def _match(pattern: re.Pattern[str], text: str, at: int, end: int) -> re.Match[str]:
    found = pattern.match(text, at, end)
    assert found is not None, "only for patterns that match the empty text"
    return found


def _after(close: re.Match[str] | None, tag: str, raw: str, end: int) -> int:
    """Return where to continue: after the closing tag and its line breaks, or at another tag that ended the part."""
    if close is None:
        return end
    return _match(_NEWLINES, raw, close.end(), end).end() if close[0] == tag else close.start()


def _read_call(source: str) -> ToolCall:
    """Translate `{key:<|"|>text<|"|>,n:3}` to JSON, token by token, and decode it; raise ValueError if invalid."""
    name = _CALL_NAME.match(source)
    if not name or not source.startswith("{", name.end()):
        raise ValueError("expected call:NAME{...}")
    depth = 0

    def as_json(token: re.Match[str]) -> str:
        nonlocal depth
        if token["bracket"]:
            depth += 1 if token["bracket"] in "{[" else -1
            if depth > MAX_DEPTH:
                raise ValueError("nested too deeply")
        if token["quoted"] is not None:
            return json.dumps(token["quoted"])
        return json.dumps(token["bare"]) + ":" if token["colon"] else token[0]

    arguments = _ARGUMENT.sub(as_json, source[name.end() :])
    return ToolCall(name[1], _JSON.decode(arguments))


def _finite(literal: str) -> float:
    """Reject NaN, Infinity and numbers beyond the range of a float such as 1e999, all of which `json` accepts."""
    if not math.isfinite(number := float(literal)):
        raise ValueError(f"{literal} is out of range")
    return number


# strict=False allows line breaks inside "...", which models write.
_JSON = json.JSONDecoder(strict=False, parse_float=_finite, parse_constant=_finite)
