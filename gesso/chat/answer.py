"""Split the model's text into the text to show, its thoughts and its tool calls.

`AnswerParser` reads a text that arrives in parts, cut at any character. It looks at each part once. What it has split
never changes: text and thinking only grow, and a call appears once, when its last bracket is closed. Three rules ensure
this:

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

import contextlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from gesso.chat.calls import OpenList, ToolCall, match_at, read_call
from gesso.chat.tags import CALL_TAG, QUOTE, TAG, THOUGHT_END, Incoming

_NEWLINES = re.compile(r"\n*")
# All that is held back until more text decides has a limited length. The patterns are possessive where their parts
# overlap, so that the time is linear for every input.
_CHANNEL_NAME = re.compile(r"[ \t]{0,8}+(\w{0,64}+)[ \t]{0,8}+(\n?)")
# `call:f{`, `f(` and `{"name": …`, after the opening tag. A declared name has at most 128 characters.
_BEFORE_BRACKET = r"\s{0,64}+(?:call\s{0,64}+:\s{0,64}+)?([^\s{}()<\"']{0,128}+)\s{0,64}+"
_OPENING = re.compile(_BEFORE_BRACKET + "([{(])")
_HALF_OPENING = re.compile(_BEFORE_BRACKET + r"\Z")
_CALL_END = "<tool_call|>"
_CLOSING = re.compile(r"[\s)\]}]*+")  # models often close a bracket too many
# A call without its opening tag: the rest of a damaged tag, a colon, a name and a bracket.
_NAME_CHARACTER = r"[A-Za-z0-9_.:/-]"
_TAG_OR_MARK = re.compile(f"{TAG.pattern}|:(?P<name>{_NAME_CHARACTER}{{1,128}}+)(?= ?[{{(])")
_BEFORE_MARK = re.compile(r"\w{0,16}+ ?+\Z")
_HALF_MARK = re.compile(rf"\w{{0,16}}+ ?+(?::{_NAME_CHARACTER}{{0,128}}+ ?+)?\Z")
_LONGEST_MARK = 16 + 1 + 1 + 128 + 1
# Arguments after the last bracket of a call: certainly if one begins with its key, and otherwise if an end tag follows.
# The text is held back until that is clear, so its length is limited. Text after a space may be the answer's.
_KEYED = re.compile(
    r""",\s{0,8}+(?:[\w.$-]{1,64}+|"[^"<]{0,64}+"|'[^'<]{0,64}+'|<\|"\|>[^<]{0,64}+<\|"\|>)\s{0,8}+[:=]"""
)
_REST = re.compile(rf"""(?:(?<!\s)|(?=[,:=(\[{{"']|<\|"\|>))(?:[^<]|<\|"\|>|(?!{TAG.pattern})<){{1,256}}""")


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
    parser = AnswerParser(tools)
    parser.add(raw)
    if ended:
        parser.end()
    return parser.answer()


class _State(Enum):
    """The part of an answer that the parser is in."""

    TEXT = auto()
    CHANNEL = auto()  # the name after `<|channel>`
    THOUGHT = auto()
    NEWLINES = auto()  # after the tag that closes a thought or a call
    OPENING = auto()  # of a call: its name, up to the first bracket
    ARGUMENTS = auto()
    UNREADABLE = auto()  # a call, up to the next tag of a call
    CLOSING = auto()  # after the last bracket of a call
    REST = auto()  # arguments after the last bracket, of which the first has a key
    AFTER_REST = auto()


_OPEN = (_State.CHANNEL, _State.THOUGHT, _State.OPENING, _State.ARGUMENTS, _State.UNREADABLE, _State.REST)


class AnswerParser:
    """Parser of an answer that arrives in parts. `text`, `thinking`, `calls` and `malformed` only grow."""

    def __init__(self, tools: Collection[str] | None = None) -> None:
        self.text: list[str] = []
        self.thinking: list[str] = []
        self.calls: list[ToolCall] = []
        self.malformed: list[str] = []
        self._tools = None if tools is None else frozenset(tools)
        self._tags = _TAG_OR_MARK if tools else TAG
        self._incoming = Incoming()
        self._raw = ""  # the text that is not split yet, after one character that is: `_REST` looks back at it
        self._at = 0  # the text before it is split
        self._state = _State.TEXT
        self._has_ended = False
        self._in_channel = False
        self._is_blank_thought = True
        self._space: list[str] = []  # at the end of a thought; dropped unless a word follows
        # Of the call that is open:
        self._has_tag = False
        self._name = ""
        self._source: list[str] = []  # the text before its first bracket, and then the arguments in parts
        self._list = OpenList()

    def add(self, more: str) -> None:
        """Split more text, up to an end of which the text after it decides."""
        if self._has_ended:
            return
        self._raw = self._raw[max(self._at - 1, 0) :] + self._incoming.add(more)
        self._at = min(self._at, 1)
        if self._incoming.turn_is_over:
            self.end()
        else:
            self._split()

    def end(self) -> None:
        """Split the end of the text."""
        if self._has_ended:
            return
        self._has_ended = True
        self._split()
        if self.malformed and not self.calls and not "".join(self.text).strip():
            plain = (TAG.sub("", source.replace(QUOTE, '"')).strip() for source in self.malformed)
            self.text += [source.removeprefix("call:") for source in plain]

    def answer(self) -> Answer:
        """Return the answer so far."""
        is_held_back = self._at < len(self._raw) or bool(self._incoming.half_tag)
        return Answer(
            text="".join(self.text),
            thinking="".join(self.thinking),
            tool_calls=tuple(self.calls),
            complete=not (is_held_back or self._in_channel or self._state in _OPEN),
            malformed=tuple(self.malformed),
        )

    def _split(self) -> None:
        following: _State | None = self._state
        while following:
            self._state = following
            following = self._read_part()

    def _read_part(self) -> _State | None:
        """Read on in the present part. Return the part that follows, or None if that takes more text."""
        match self._state:
            case _State.TEXT:
                return self._read_text()
            case _State.CHANNEL:
                return self._read_channel_name()
            case _State.THOUGHT:
                return self._read_thought()
            case _State.NEWLINES:
                return self._skip_newlines()
            case _State.OPENING:
                return self._read_opening()
            case _State.ARGUMENTS:
                return self._read_arguments()
            case _State.UNREADABLE:
                return self._read_unreadable_call()
            case _State.CLOSING | _State.AFTER_REST:
                return self._skip_closing()
            case _State.REST:
                return self._read_rest()

    # --- text and thoughts ---

    def _read_text(self) -> _State | None:
        tag = self._next_tag()
        if tag is None:
            self._show(len(self._raw) if self._has_ended else self._half_mark_start())
            return None
        if tag.lastgroup == "name":
            self._show(self._mark_start(tag.start()))
            self._at = tag.start("name")
            self._has_tag = False
            return _State.OPENING
        self._show(tag.start())
        self._at = tag.end()
        if tag[0] == "<|channel>":
            return _State.CHANNEL
        if tag[0] == "<|tool_call>":
            self._has_tag = True
            return _State.OPENING
        if tag[0] == "<channel|>":
            self._in_channel = False
        return _State.TEXT

    def _next_tag(self) -> re.Match[str] | None:
        """Return the next tag, or the next mark of a call of a known tool."""
        at = self._at
        while tag := self._tags.search(self._raw, at):
            if tag.lastgroup is None or self._is_tool(tag["name"]):
                return tag
            at = tag.start() + 1  # a name may contain a colon: in `x:f{`, it is f
        return None

    def _is_tool(self, name: str) -> bool:
        return self._tools is not None and name in self._tools

    def _show(self, end: int) -> None:
        self.text.append(self._raw[self._at : end])
        self._at = end

    def _mark_start(self, colon: int) -> int:
        """Return where a call without its opening tag begins: at the rest of the damaged tag before the colon."""
        first = max(self._at, colon - _LONGEST_MARK)
        return first + _search(_BEFORE_MARK, self._raw[first:colon]).start()

    def _half_mark_start(self) -> int:
        """Return where text begins that may become a call without its opening tag, or the length of the text."""
        if not self._tools:
            return len(self._raw)
        first = max(self._at, len(self._raw) - _LONGEST_MARK)
        return first + _search(_HALF_MARK, self._raw[first:]).start()

    def _read_channel_name(self) -> _State | None:
        name = match_at(_CHANNEL_NAME, self._raw, self._at)
        if name.end() == len(self._raw) and not self._has_ended:
            return None  # "thought" may become "thoughtful"
        if name[1].lower() == "thought":
            self._at = name.end()
            self._is_blank_thought = True
            self._space = []
            return _State.THOUGHT
        # Only the channel "thought" is documented as hidden. The text of any other channel, such as "final", is shown:
        # a superfluous label does less harm than a missing answer.
        self._in_channel = True
        self._at = name.end() if name[2] else self._at
        return _State.TEXT

    def _read_thought(self) -> _State | None:
        close = THOUGHT_END.search(self._raw, self._at)
        end = close.start() if close else len(self._raw)
        self._think(self._raw[self._at : end])
        self._at = end
        if close is None:
            return None
        if close[0] == "<|channel>":
            return _State.TEXT
        self._at = close.end()
        return _State.NEWLINES

    def _think(self, part: str) -> None:
        """Append to the thought, without the white space around it. Thoughts are separated by a line break."""
        if self._is_blank_thought:
            part = part.lstrip()
        words = part.rstrip()
        if words:
            if self._is_blank_thought and self.thinking:
                self.thinking.append("\n")
            self.thinking += [*self._space, words]
            self._space = []
            self._is_blank_thought = False
        self._space.append(part[len(words) :])

    def _skip_newlines(self) -> _State | None:
        self._at = match_at(_NEWLINES, self._raw, self._at).end()
        return _State.TEXT if self._at < len(self._raw) else None

    # --- calls ---

    def _read_opening(self) -> _State | None:
        opening = _OPENING.match(self._raw, self._at)
        if opening:
            self._name = opening[1]
            self._source = [self._raw[self._at : opening.start(2)]]
            self._at = opening.start(2)
            self._take(opening.end())
            self._list = OpenList()
            return _State.ARGUMENTS
        if _HALF_OPENING.match(self._raw, self._at) and not self._has_ended:
            return None
        self._source = []
        return _State.UNREADABLE

    def _take(self, end: int) -> None:
        self._source.append(self._raw[self._at : end])
        self._at = end

    def _read_arguments(self) -> _State | None:
        self._take(self._list.read_on(self._raw, self._at, len(self._raw)))
        if self._list.is_closed:
            return self._add_call()
        return _State.UNREADABLE if self._list.is_cut or self._has_ended else None

    def _add_call(self) -> _State:
        """Read the call whose last bracket is closed."""
        call = None
        with contextlib.suppress(ValueError):
            call = read_call(self._name, "".join(self._source[1:]))
        if call and (self._tools is None or call.name in self._tools):
            self.calls.append(call)
            return _State.CLOSING
        if self._has_tag:  # then a tag, not a bracket, tells where it ends
            return _State.UNREADABLE
        self.malformed.append("".join(self._source))
        return _State.CLOSING

    def _read_unreadable_call(self) -> _State | None:
        close = CALL_TAG.search(self._raw, self._at)
        self._take(close.start() if close else len(self._raw))
        if close is None and not self._has_ended:
            return None
        self.malformed.append("".join(self._source))
        return _State.CLOSING

    def _skip_closing(self) -> _State | None:
        """Skip what closes a call, and look for arguments after it once."""
        self._at = match_at(_CLOSING, self._raw, self._at).end()
        if self._at == len(self._raw):
            return None
        if self._raw.startswith(_CALL_END, self._at):
            self._at += len(_CALL_END)
            return _State.NEWLINES
        return _State.TEXT if self._state is _State.AFTER_REST else self._find_rest()

    def _find_rest(self) -> _State | None:
        if _KEYED.match(self._raw, self._at):
            self._source = []
            self._list = OpenList()
            return _State.REST
        rest = _REST.match(self._raw, self._at)
        if rest is None or self._next_mark(rest.end()):
            return _State.TEXT
        if rest.end() == len(self._raw) and not self._has_ended:
            return None
        if not self._raw.startswith(_CALL_END, rest.end()):
            return _State.TEXT
        self.malformed.append(rest[0])
        self._at = rest.end()
        return _State.AFTER_REST

    def _read_rest(self) -> _State | None:
        end = len(self._raw) if self._has_ended else self._half_mark_start()
        mark = self._next_mark(end)
        self._take(self._list.read_on(self._raw, self._at, mark.start() if mark else end))
        if self._list.is_closed or self._list.is_cut:
            self.malformed.append("".join(self._source))
            return _State.AFTER_REST
        if mark:  # the next call: the text before it is text
            self._raw = "".join(self._source) + self._raw[self._at :]
            self._at = 0
            return _State.TEXT
        if self._has_ended:
            self._take(end)
            self.malformed.append("".join(self._source))
            return _State.AFTER_REST
        return None

    def _next_mark(self, end: int) -> re.Match[str] | None:
        """Return the next mark of a call of a known tool, unless a tag of a call comes first."""
        for tag in self._tags.finditer(self._raw, self._at, end):
            if CALL_TAG.match(tag[0]):
                return None
            if tag.lastgroup == "name" and self._is_tool(tag["name"]):
                return tag
        return None


def _search(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    """Search for a pattern that also matches the empty text."""
    match = pattern.search(text)
    assert match is not None
    return match
