"""Turn the settled tokens of an answer into text that can be sent."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gesso.chat.answer import Answer, ToolCall, parse, read
from gesso.chat.tokenizer import Tokenizer
from gesso.engine.final_text import is_whole, text_between
from gesso.serve.protocol import Ended


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

    With None, calls may have any name.
    """

    tokenizer: Tokenizer
    chat: bool
    tools: Collection[str] | None = None
    one_call: bool = False  # drop every call but the first
    tokens: list[int] = field(default_factory=list)
    sent: Answer = field(default_factory=lambda: parse(""))
    whole: int = 0  # tokens whose text no later token changes
    whole_text: str = ""

    def settle(self, tokens: Sequence[int]) -> Delta:
        """Append settled tokens and return the new text."""
        self.tokens += tokens
        text = self._text()
        return self._advance(self._allowed(parse(text, self.tools)) if self.chat else _plain(text))

    def end(self, ended: Ended) -> Delta:
        """Return the text between the last delta and the end of the answer."""
        return self._advance(self.answer(ended))

    def answer(self, ended: Ended) -> Answer:
        """Parse a complete answer."""
        if not self.chat:
            return _plain(ended.text)
        return self._allowed(read(ended.tokens, ended.text, self.decode, self.tools))

    def _allowed(self, answer: Answer) -> Answer:
        return replace(answer, tool_calls=answer.tool_calls[:1]) if self.one_call else answer

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return self.tokenizer.decode([t for t in tokens if t < self.tokenizer.vocab_size], special=special)

    def _text(self) -> str:
        """Return the text of all tokens, decoding only those from the last known whole token on."""
        decode, bytes_ = partial(self.decode, special=self.chat), self.tokenizer.byte_ids
        ends = range(len(self.tokens), self.whole, -1)
        if (end := next((end for end in ends if is_whole(self.tokens[end - 1], bytes_, decode)), None)) is not None:
            self.whole_text += text_between(self.tokens, self.whole, end, decode)
            self.whole = end
        return self.whole_text + text_between(self.tokens, self.whole, len(self.tokens), decode)

    def _advance(self, answer: Answer) -> Delta:
        sent, self.sent = self.sent, answer
        return Delta(
            answer.text[len(sent.text) :],
            answer.thinking[len(sent.thinking) :],
            answer.tool_calls[len(sent.tool_calls) :],
        )


def _plain(text: str) -> Answer:
    return Answer(text, "", (), True)
