"""What a caller may ask of a text, as regular expressions; and the guides made of them, kept for the next time."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from gesso.errors import InputError
from gesso.guide.automaton import compile_regex
from gesso.guide.grammar import grammar_regex
from gesso.guide.guide import Guide
from gesso.guide.limits import Limits
from gesso.guide.pieces import quote
from gesso.guide.schema import schema_regex
from gesso.guide.tools import MARKS, TAGS, calls_regex, chosen
from gesso.guide.words import Words
from gesso.tokenizer import Tokenizer

NAMES = ("choice", "regex", "json_schema", "grammar")
KEPT = 32  # compiled constraints


class Guides:
    """Of one model. Compiling takes a second at most for what people write; the same constraint is compiled once."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos: frozenset[int], limits: Limits | None = None
    ) -> None:
        self.tokenizer, self.vocab_size, self.eos = tokenizer, vocab_size, eos
        self.limits = limits or Limits()
        self._kept: OrderedDict[tuple[str, bool], Guide] = OrderedDict()

    def guide(self, **given: Any) -> Guide | None:
        """The guide for at most one of `choice`, `regex`, `json_schema` and `grammar`; None for none of them."""
        named = [name for name in NAMES if given.get(name) is not None]
        if not named:
            return None
        if len(named) > 1:
            raise InputError(f"{' and '.join(named)} were given; a text has one constraint")
        return self._of(expression(named[0], given[named[0]], self.limits), self._words)

    def calls(
        self, tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any], parallel: bool
    ) -> Guide | None:
        """The guide for calling tools; None where nothing has to be called."""
        functions = chosen(tools, choice)
        if not functions:
            return None
        if missing := [tag for tag in TAGS if self.tokenizer.id_of(tag) is None]:
            raise InputError(f"this checkpoint has no token {missing[0]}, in which calls are written")
        return self._of(calls_regex(functions, parallel=parallel, limits=self.limits), self._words_and_tags, MARKS)

    def _of(self, regex: str, words: Words, marks: Mapping[str, int] = MappingProxyType({})) -> Guide:
        key = regex, bool(marks)
        if key not in self._kept:
            guide = Guide(compile_regex(regex, self.limits).marked(marks), words, self.eos)
            _ = guide.moves  # made here, where one caller waits, and not in a pass of the engine, where all do
            self._kept[key] = guide
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    @cached_property
    def _words(self) -> Words:
        return Words.of(self.tokenizer, self.vocab_size)

    @cached_property
    def _words_and_tags(self) -> Words:
        named = {self.tokenizer.id_of(tag): MARKS[mark] for tag, mark in TAGS.items()}
        return Words.of(self.tokenizer, self.vocab_size, {token: m for token, m in named.items() if token is not None})


def expression(name: str, value: Any, limits: Limits) -> str:
    match name:
        case "choice":
            return _choice(value)
        case "json_schema":
            if not isinstance(value, (Mapping, bool)):
                raise InputError(f"json_schema must be a schema (a mapping, or true or false), got {value!r:.80}")
            return schema_regex(value, limits=limits)
        case "regex" | "grammar" if not isinstance(value, str):
            raise InputError(f"{name} must be text, got {type(value).__name__}")
        case "grammar":
            return grammar_regex(value, limits=limits)
    return str(value)


def _choice(texts: Sequence[str]) -> str:
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"choice must be a list of texts, got {texts!r:.80}")
    if not texts or "" in texts:
        raise InputError("choice must have at least one text, and none may be empty")
    return "|".join(quote(text).text for text in texts)
