"""Apply a constraint after the model's thoughts.

In a chat, thoughts are text between two special tokens, which `gesso.chat.answer` parses. In a term, each of these
tokens is a byte that no text contains, like the tags of tool calls in `tools`.
"""

from gesso.constraints.charset import ANY, char_class
from gesso.constraints.term import Term
from gesso.constraints.terms import literal, one_of, optional, repeat, seq

BEGIN, END = 0xFB, 0xFC
TAGS = {"<|channel>": BEGIN, "<channel|>": END}  # special token: its byte in a text
MAX_NEWLINES = 2  # between thoughts and answer; they belong to neither


def after_thinking(term: Term) -> Term:
    """Return the texts of a term, each with optional thoughts before it.

    The model decides whether it thinks and for how long, as long as the answer still fits.
    """
    begin, end = one_of(1 << BEGIN), one_of(1 << END)
    newlines = repeat(literal("\n"), 0, MAX_NEWLINES)
    thoughts = seq(begin, literal("thought\n"), repeat(char_class(ANY), 0, None), end, newlines)
    return seq(optional(thoughts), term)
