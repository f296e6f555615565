"""The syntax of tool calls: format a call as the model writes it, find the end of its arguments, and read them."""

import json
import math
import re
import sys
from dataclasses import dataclass
from typing import Any

from gesso.chat.tags import CALL_TAG, QUOTE
from gesso.errors import InputError

MAX_DEPTH = 64  # of nested objects and arrays; deeper nesting is a model that repeats "["
_CALL_TAG = r"\|tool_call>|tool_call\|>"  # after its "<"
# One token of an argument list; none begins at a tag of a call. Each character is consumed once, broken quotes included
# (the last branch), so that the time is linear for every input. No group is possessive: Python 3.11 before 3.11.5
# matches those wrongly (https://github.com/python/cpython/issues/106052).
_ARGUMENT = re.compile(
    r"""(?P<bracket>[()\[\]{}])
      | <\|"\|> (?P<quoted>[^<]*+(?:<(?!\|"\|>|TAG)[^<]*+)*) <\|"\|>
      | "[^"\\<]*+(?:(?:\\[^<]|<(?!TAG))[^"\\<]*+)*"
      | '(?P<single>[^'\\<]*+(?:(?:\\[^<]|<(?!TAG))[^'\\<]*+)*)'
      | (?P<bare>[^\s:=,()\[\]{}"'<]++) (?P<colon>\s*+[:=])?
      | (?P<between>[\s:=,]++)
      | (?:["']|<(?!TAG)) [^<]*+(?:<(?!TAG)[^<]*+)*""".replace("TAG", _CALL_TAG),
    re.DOTALL | re.VERBOSE,
)
_COMMAS = re.compile(r",(?:\s*+,)+")  # one too many between two arguments
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def _characters(plain: str, *others: str, tags: str = _CALL_TAG) -> re.Pattern[str]:
    """Return the pattern of a string's inside: `plain` characters, `others`, and "<" unless it begins one of `tags`."""
    special = "|".join((*others, f"<(?!{tags})"))
    return re.compile(f"{plain}*+(?:(?:{special}){plain}*+)*", re.DOTALL)


# The characters inside a string, by its opening quote. A string without an end goes on to the next tag of a call.
_ENDLESS = "<"
_STRINGS = {
    QUOTE: _characters("[^<]", tags=rf'\|"\|>|{_CALL_TAG}'),
    '"': _characters(r'[^"\\<]', r"\\[^<]"),
    "'": _characters(r"[^'\\<]", r"\\[^<]"),
    _ENDLESS: _characters("[^<]"),
}
_OUTSIDE = re.compile(r"""[^()\[\]{}"'<]*+""")


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass
class OpenList:
    """A list of arguments that arrives in parts, from after its first bracket to its last."""

    depth: int = 1  # brackets that are open
    quote: str = ""  # of the string that is open
    is_cut: bool = False  # a tag of a call follows, which ends a list that is not closed

    @property
    def is_closed(self) -> bool:
        return self.depth == 0

    def read_on(self, text: str, at: int, end: int) -> int:
        """Return where the list closes or is cut. If it does neither before `end`, return where to read on later."""
        while at < end and not (self.is_closed or self.is_cut):
            stop = self._in_string(text, at, end) if self.quote else self._outside(text, at, end)
            if stop == at:  # half an escape
                break
            at = stop
        return at

    def _outside(self, text: str, at: int, end: int) -> int:
        at = match_at(_OUTSIDE, text, at, end).end()
        if at == end:
            return at
        if CALL_TAG.match(text, at, end):
            self.is_cut = True
            return at
        mark = QUOTE if text.startswith(QUOTE, at, end) else text[at]
        if mark in _STRINGS:
            self.quote = mark
        else:
            self.depth += 1 if mark in "([{" else -1
        return at + len(mark)

    def _in_string(self, text: str, at: int, end: int) -> int:
        at = match_at(_STRINGS[self.quote], text, at, end).end()
        if at == end:
            return at
        if CALL_TAG.match(text, at, end):
            self.is_cut = True
            return at
        if text.startswith(self.quote, at, end):
            mark, self.quote = self.quote, ""
            return at + len(mark)
        if at + 1 < end:  # a backslash before "<", which cannot be escaped
            self.quote = _ENDLESS
            return at + 1
        return at


def match_at(pattern: re.Pattern[str], text: str, at: int, end: int = sys.maxsize) -> re.Match[str]:
    """Match a pattern that also matches the empty text."""
    match = pattern.match(text, at, end)
    assert match is not None
    return match


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


def read_call(name: str, source: str) -> ToolCall:
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
