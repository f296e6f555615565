"""The tags in the text of an answer, and the end of a text that arrives in parts.

A tag is a tag everywhere, even inside a string: each is one special token, which the model never spells out.
"""

import re

QUOTE = '<|"|>'
# Tags that end the turn. `<|tool_response>` is a stop token: the tool continues the text.
_TURN_ENDS = ("<turn|>", "<|turn>", "<|tool_response>")
# Tags without a meaning in an answer. They are dropped, as in decoding without special tokens.
_STRAY = ("<tool_call|>", "<channel|>", "<tool_response|>", "<|tool>", "<tool|>", "<|think|>", QUOTE)
# Dropped only at the very end: an answer may explain what `<eos>` means.
_PADDING = ("<eos>", "<pad>", "<bos>")
_TAGS = ("<|channel>", "<|tool_call>", *_TURN_ENDS, *_STRAY)


def _any_of(*tags: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tags)))


TAG = _any_of(*_TAGS)
THOUGHT_END = _any_of("<channel|>", "<|channel>")
CALL_TAG = _any_of("<|tool_call>", "<tool_call|>")
_TURN_END = _any_of(*_TURN_ENDS)


class Incoming:
    """Text that arrives in parts, up to the end of the turn.

    Half a tag and padding are held back at the end, until the text after them decides.
    """

    def __init__(self) -> None:
        self.half_tag = ""
        self.turn_is_over = False
        self._padding: list[str] = []

    def add(self, more: str) -> str:
        """Return the text that is neither half a tag nor padding at the end, whatever follows."""
        text = self.half_tag + more
        turn_end = _TURN_END.search(text)
        if turn_end:
            self.turn_is_over = True
            end = turn_end.start()
            self.half_tag = ""
        else:
            end = _half_tag_start(text)
            self.half_tag = text[end:]
        sure = _padding_start(text, end)
        padding = text[sure:end]
        if sure == 0:
            self._padding.append(padding)
            return ""
        before, self._padding = self._padding, [padding]
        return "".join(before) + text[:sure]


def _half_tag_start(text: str) -> int:
    """Return where half a tag begins that ends the text, or the length of the text."""
    last = text.rfind("<")
    tail = text[last:]
    is_half = last >= 0 and any(tag != tail and tag.startswith(tail) for tag in (*_TAGS, *_PADDING))
    return last if is_half else len(text)


def _padding_start(text: str, end: int) -> int:
    """Return where the padding before `end` begins."""
    while padding := next((tag for tag in _PADDING if text.endswith(tag, 0, end)), None):
        end -= len(padding)
    return end
