"""Turn the settled tokens of an answer into text that can be sent."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gesso.chat.answer import Answer, AnswerParser, parse, read
from gesso.chat.calls import ToolCall
from gesso.chat.tokenizer import Tokenizer
from gesso.engine.final_text import is_whole, text_between
from gesso.serve.wire import Ended


@dataclass(frozen=True)
class Delta:
    """The part of an answer that has not been sent yet."""

    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.thinking or self.calls)


@dataclass
class AnswerDeltas:
    """The deltas of one answer. With `chat`, thinking and calls of `tools` are separated from the text.

    With None, calls may have any name. Each token is decoded and parsed once when it arrives, and once at the end of
    the answer.
    """

    tokenizer: Tokenizer
    chat: bool
    tools: Collection[str] | None = None
    one_call: bool = False  # drop every call but the first
    tokens: list[int] = field(default_factory=list)
    final: Answer = field(default_factory=lambda: parse(""))  # the complete answer, from its end on
    whole: int = 0  # tokens whose text no later token changes
    text_sent: int = 0
    thinking_sent: int = 0
    calls_sent: int = 0
    parser: AnswerParser = field(init=False)

    def __post_init__(self) -> None:
        self.parser = AnswerParser(self.tools)

    def settle(self, tokens: Sequence[int]) -> Delta:
        """Append settled tokens and return the new text."""
        text = self._text_of(tokens)
        if not self.chat:
            return self._send(Delta(text))
        pieces = len(self.parser.text)
        thoughts = len(self.parser.thinking)
        self.parser.add(text)
        return self._send(
            Delta(
                text="".join(self.parser.text[pieces:]),
                thinking="".join(self.parser.thinking[thoughts:]),
                calls=tuple(self.parser.calls[self.calls_sent : self._most_calls]),
            )
        )

    def end(self, ended: Ended) -> Delta:
        """Return the text between the last delta and the end of the answer."""
        self.final = self.answer(ended)
        return self._send(
            Delta(
                text=self.final.text[self.text_sent :],
                thinking=self.final.thinking[self.thinking_sent :],
                calls=self.final.tool_calls[self.calls_sent :],
            )
        )

    def answer(self, ended: Ended) -> Answer:
        """Parse a complete answer."""
        if not self.chat:
            return Answer(ended.text, "", (), True)
        answer = read(ended.tokens, ended.text, self.decode, self.tools)
        return replace(answer, tool_calls=answer.tool_calls[: self._most_calls])

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return self.tokenizer.text_of(tokens, special=special)

    def _text_of(self, tokens: Sequence[int]) -> str:
        """Append tokens, and return the text up to the last whole one that was not returned before."""
        decode, bytes_ = partial(self.decode, special=self.chat), self.tokenizer.byte_ids
        before = len(self.tokens)  # the tokens between `whole` and this are not whole
        self.tokens += tokens
        ends = range(len(self.tokens), before, -1)
        end = next((end for end in ends if is_whole(self.tokens[end - 1], bytes_, decode)), None)
        if end is None:
            return ""
        text = text_between(self.tokens, self.whole, end, decode)
        self.whole = end
        return text

    @property
    def _most_calls(self) -> int | None:
        return 1 if self.one_call else None

    def _send(self, delta: Delta) -> Delta:
        self.text_sent += len(delta.text)
        self.thinking_sent += len(delta.thinking)
        self.calls_sent += len(delta.calls)
        return delta
