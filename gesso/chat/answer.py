"""Split the model's text into the text to show, its thoughts and its tool calls.

`parse` is a pure function of the text so far, which may be cut at any character. While more text arrives, `text` and
`thinking` only grow, and a call appears once, when its last bracket is closed. Three rules ensure this:

- A tag is a tag everywhere, even inside a string: each is one special token, which the model never spells out. So
  `<tool_call|>` ends a call whose quotes are still open, and the rest of the answer is not lost. For the same reason
  `format_value` escapes strings that contain tags.
- A trailing `<` that could become a tag is held back until the next character decides. An answer that the length limit
  cuts right there loses that character. A finished answer ends with a tag and loses nothing.
- A call of a known tool is a call without its opening tag, too: small models damage `<|tool_call>call:f{` to `I :f{`.
  So if there are tools, the last word is held back until it is clear that no `:f{` follows.

A call that cannot be read, or that names an unknown tool, is in `malformed` and not in the text, unless the answer
would be blank without it. Arguments after a bracket that closed a call too early are in `malformed`, too.
"""

import json
import math
import re
from collections.abc import Collection, Sequence
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
_NEWLINES = re.compile(r"\n*")
# `call:f{`, `f(` and `{"name": …`, after the opening tag. Possessive, so that the time is linear for every input.
_OPENING = re.compile(r"\s*+(?:call\s*+:\s*+)?([^\s{}()<\"']*+)\s*+([{(])")
_CLOSING = re.compile(r"[\s)\]}]*+(?:<tool_call\|>\n*+)?")  # models often close a bracket too many
# A call without its opening tag: the rest of a damaged tag, a colon, a name and a bracket.
_NAME_CHARACTER = r"[A-Za-z0-9_.:/-]"
_TAG_OR_MARK = re.compile(f"{_TAG.pattern}|:(?P<name>{_NAME_CHARACTER}{{1,128}}+)(?= ?[{{(])")
_BEFORE_MARK = re.compile(r"\w{0,16}+ ?+\Z")
_HALF_MARK = re.compile(rf"\w{{0,16}}+ ?+(?::{_NAME_CHARACTER}{{0,128}}+ ?+)?\Z")
_LONGEST_MARK = 16 + 1 + 1 + 128 + 1
# One token of an argument list; none begins at a tag of a call. Each character is consumed once, broken quotes included
# (the last branch), so that the time is linear for every input.
_ARGUMENT = re.compile(
    r"""(?P<bracket>[()\[\]{}])
      | <\|"\|> (?P<quoted>(?:[^<]|<(?!\|"\|>|TAG))*+) <\|"\|>
      | "(?:[^"\\<]|\\[^<]|<(?!TAG))*+"
      | '(?P<single>(?:[^'\\<]|\\[^<]|<(?!TAG))*+)'
      | (?P<bare>[^\s:=,()\[\]{}"'<]++) (?P<colon>\s*+[:=])?
      | (?P<between>[\s:=,]++)
      | (?:["']|<(?!TAG)) (?:[^<]|<(?!TAG))*+""".replace("TAG", r"\|tool_call>|tool_call\|>"),
    re.DOTALL | re.VERBOSE,
)
# Arguments after the last bracket of a call: certainly if one begins with its key, and otherwise if an end tag follows.
# The text is held back until that is clear, so its length is limited. Text after a space may be the answer's.
_KEYED = re.compile(
    r""",\s{0,8}+(?:[\w.$-]{1,64}+|"[^"<]{0,64}+"|'[^'<]{0,64}+'|<\|"\|>[^<]{0,64}+<\|"\|>)\s{0,8}+[:=]"""
)
_REST = re.compile(rf"""(?:(?<!\s)|(?=[,:=(\[{{"']|<\|"\|>))(?:[^<]|<\|"\|>|(?!{_TAG.pattern})<){{1,256}}+""")
_COMMAS = re.compile(r",(?:\s*+,)++")  # one too many between two arguments
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


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
    malformed: tuple[str, ...] = ()  # the source of calls that cannot be read or name an unknown tool


class Decode(Protocol):
    def __call__(self, tokens: Sequence[int], *, special: bool = False) -> str: ...


def read(tokens: Sequence[int], text: str, decode: Decode, tools: Collection[str] | None = None) -> Answer:
    """Return the answer in all of its tokens. `text` is their text up to a stop string, which may end inside a token.

    `tools` are the names of the known tools; with None, calls may have any name.
    """
    after_stop = decode(tokens)[len(text) :]
    return parse(decode(tokens, special=True).removesuffix(after_stop), tools, ended=True)


def parse(raw: str, tools: Collection[str] | None = None, *, ended: bool = False) -> Answer:
    """Return the answer in a text with tags. Unless it has `ended`, more text may follow."""
    tools = None if tools is None else frozenset(tools)  # a text may name tools as often as it has characters
    end, turn_over, half_tag = _extent(raw)
    ended = ended or turn_over
    text: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    malformed: list[str] = []
    is_open = half_tag
    in_channel = False
    shown = at = 0  # `shown`: the text before it is split; `at`: the search continues here
    pattern = _TAG_OR_MARK if tools else _TAG
    while found := pattern.search(raw, at, end):
        at = found.end()
        name = found["name"] if found.lastgroup else None
        if name and name not in (tools or ()):
            at = found.start() + 1  # a name may contain a colon: in `x:f{`, it is f
            continue
        start = _mark_start(raw, shown, found.start()) if name else found.start()
        text.append(raw[shown:start])
        if found[0] == "<|channel>":
            channel = _match(_CHANNEL_NAME, raw, at, end)
            if channel.end() == end and not ended:
                is_open, at = True, end  # "thought" may become "thoughtful"
            elif channel[1].lower() == "thought":
                close = _THOUGHT_END.search(raw, channel.end(), end)
                thoughts.append(raw[channel.end() : close.start() if close else end])
                is_open = is_open or close is None
                at = _after(close, "<channel|>", raw, end)
            else:
                # Only the channel "thought" is documented as hidden. The text of any other channel, such as "final", is
                # shown: a superfluous label does less harm than a missing answer.
                in_channel = True
                at = channel.end() if channel[2] else at
        elif name or found[0] == "<|tool_call>":
            source = found.start("name") if name else at
            call, at = _find_call(raw, source, end, tools)
            if call is None and not name and at < end:  # the tag, not a bracket, tells where this call ends
                at = close.start() if (close := _CALL_END.search(raw, at, end)) else end
            if call:
                calls.append(call)
            elif at < end or ended:
                malformed.append(raw[source:at])
            else:
                is_open = True
            closing = _match(_CLOSING, raw, at, end)
            at = closing.end()
            if "<" not in closing[0] and (rest := _rest_of_call(raw, at, end, tools, ended)) > at:
                if rest < end or ended:
                    malformed.append(raw[at:rest])
                else:
                    is_open = True
                at = _match(_CLOSING, raw, rest, end).end()
        elif found[0] == "<channel|>":
            in_channel = False
        shown = at
    held = end
    if tools and not ended:
        tail = max(shown, end - _LONGEST_MARK)
        held = tail + _search(_HALF_MARK, raw[tail:end]).start()
    text.append(raw[shown:held])
    if ended and malformed and not calls and not "".join(text).strip():
        text += [_TAG.sub("", source.replace(QUOTE, '"')).strip().removeprefix("call:") for source in malformed]
    thinking = "\n".join(filter(None, map(str.strip, thoughts)))
    complete = not (is_open or in_channel or held < end)
    return Answer("".join(text), thinking, tuple(calls), complete, tuple(malformed))


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


def _search(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.search(text)
    assert found is not None, "only for patterns that match the empty text"
    return found


def _mark_start(raw: str, shown: int, colon: int) -> int:
    """Return where a call without its opening tag begins: at the rest of the damaged tag before the colon."""
    first = max(shown, colon - _LONGEST_MARK)
    return first + _search(_BEFORE_MARK, raw[first:colon]).start()


def _after(close: re.Match[str] | None, tag: str, raw: str, end: int) -> int:
    """Return where to continue: after the closing tag and its line breaks, or at another tag that ended the part."""
    if close is None:
        return end
    return _match(_NEWLINES, raw, close.end(), end).end() if close[0] == tag else close.start()


def _find_call(raw: str, at: int, end: int, tools: Collection[str] | None) -> tuple[ToolCall | None, int]:
    """Return the call that begins here, and where its brackets close or it is cut off. None if it cannot be read."""
    opening = _OPENING.match(raw, at, end)
    if not opening:
        return None, at
    stop, is_closed = _list_end(raw, opening.start(2), end)
    if not is_closed:
        return None, stop
    try:
        call = _read_call(opening[1], raw[opening.start(2) : stop])
    except ValueError:
        return None, stop
    return (call if tools is None or call.name in tools else None), stop


def _list_end(raw: str, at: int, end: int, depth: int = 0) -> tuple[int, bool]:
    """Return where a list of arguments ends, and whether its brackets are closed there. `depth` are open already."""
    while token := _ARGUMENT.match(raw, at, end):
        at = token.end()
        if token["bracket"]:
            depth += 1 if token["bracket"] in "([{" else -1
            if depth <= 0:
                return at, True
    return at, False


def _rest_of_call(raw: str, at: int, end: int, tools: Collection[str] | None, ended: bool) -> int:
    """Return where arguments end that follow the last bracket of a call, or `at` if none do.

    If that is not clear yet, return `end`.
    """
    if _KEYED.match(raw, at, end):
        stop, _ = _list_end(raw, at, end, depth=1)
    elif rest := _REST.match(raw, at, end):
        stop = rest.end()
        if (stop == end and ended) or (stop < end and not raw.startswith("<tool_call|>", stop)):
            return at
    else:
        return at
    names = (mark["name"] for mark in _TAG_OR_MARK.finditer(raw, at, stop) if mark["name"])
    return at if any(name in (tools or ()) for name in names) else stop  # the next call, not the rest of this one


def _read_call(name: str, source: str) -> ToolCall:
    """Translate `{key:<|"|>text<|"|>,n:3}` or `(key="text", n=3)` to JSON, token by token, and decode it.

    Without a name, both are in the JSON: `{"name": …, "arguments": …}`. Raise ValueError if it is invalid.
    """
    if wrapped := re.fullmatch(r"\(\s*+(\{.*\})\s*\)", source, re.DOTALL):
        source = wrapped[1]  # f({"key": 3})
    depth = 0

    def as_json(token: re.Match[str]) -> str:
        nonlocal depth
        if bracket := token["bracket"]:
            depth += 1 if bracket in "([{" else -1
            if depth > MAX_DEPTH:
                raise ValueError("nested too deeply")
            return {"(1": "{", ")0": "}"}.get(f"{bracket}{depth}", bracket)
        if token["quoted"] is not None:
            return json.dumps(token["quoted"])
        if token["single"] is not None:
            text = token["single"].replace("\\'", "'")
            return '"' + re.sub(r'\\.|"', lambda part: '\\"' if part[0] == '"' else part[0], text) + '"'
        if token["colon"]:
            return json.dumps(token["bare"]) + ":"
        if token["between"]:
            return _COMMAS.sub(",", token[0])
        return _PYTHON_WORDS.get(token[0], token[0])

    arguments = _JSON.decode(_ARGUMENT.sub(as_json, source))
    if not name:
        name, arguments = arguments.get("name"), arguments.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("expected a name and an object of arguments")
    return ToolCall(name, arguments)


def _finite(literal: str) -> float:
    """Reject NaN, Infinity and numbers beyond the range of a float such as 1e999, all of which `json` accepts."""
    if not math.isfinite(number := float(literal)):
        raise ValueError(f"{literal} is out of range")
    return number


# strict=False allows line breaks inside "...", which models write.
_JSON = json.JSONDecoder(strict=False, parse_float=_finite, parse_constant=_finite)
