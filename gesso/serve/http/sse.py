"""Server-sent events, and what of an answer is new since the last one."""

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gesso.chat.answer import Answer, ToolCall, parse, read
from gesso.chat.tokenizer import Tokenizer
from gesso.engine.standing import is_whole, text_between
from gesso.serve.errors import ApiError
from gesso.serve.generation import Gone, unless_gone
from gesso.serve.protocol import Ended

DONE = b"data: [DONE]\n\n"


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class EventStream(Response):
    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], at_end: Callable[[], None]) -> None:
        """`at_end` is called once, also if the response ends before `events` has begun."""
        self.events, self.at_end = events, at_end
        self.status_code, self.background = 200, None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._write(send))
        except Gone:
            return
        finally:
            self.at_end()
            await self.events.aclose()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for part in self.events:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except ApiError as error:  # the status is long sent; the error is the last event
            await send({"type": "http.response.body", "body": event(error.body), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@dataclass(frozen=True)
class Delta:
    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.thinking or self.calls)


@dataclass
class Writing:
    """An answer as it is written: tokens come in, what is new of its text goes out."""

    tokenizer: Tokenizer
    chat: bool
    tokens: list[int] = field(default_factory=list)
    sent: Answer = field(default_factory=lambda: parse(""))
    whole: int = 0  # tokens whose text no later token changes
    whole_text: str = ""

    def settle(self, tokens: Sequence[int]) -> Delta:
        self.tokens += tokens
        text = self._text()
        return self._new(parse(text) if self.chat else _plain(text))

    def _text(self) -> str:
        """Return the text of all tokens; decode only those after the last whole one that is known, and that one."""
        decode, bytes_ = partial(self.decode, special=self.chat), self.tokenizer.byte_ids
        ends = range(len(self.tokens), self.whole, -1)
        if (end := next((end for end in ends if is_whole(self.tokens[end - 1], bytes_, decode)), None)) is not None:
            self.whole_text += text_between(self.tokens, self.whole, end, decode)
            self.whole = end
        return self.whole_text + text_between(self.tokens, self.whole, len(self.tokens), decode)

    def end(self, ended: Ended) -> Delta:
        return self._new(self.answer(ended))

    def answer(self, ended: Ended) -> Answer:
        return read(ended.tokens, ended.text, self.decode) if self.chat else _plain(ended.text)

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return self.tokenizer.decode([t for t in tokens if t < self.tokenizer.vocab_size], special=special)

    def _new(self, answer: Answer) -> Delta:
        sent, self.sent = self.sent, answer
        return Delta(
            answer.text[len(sent.text) :],
            answer.thinking[len(sent.thinking) :],
            answer.tool_calls[len(sent.tool_calls) :],
        )


def _plain(text: str) -> Answer:
    return Answer(text, "", (), True)
