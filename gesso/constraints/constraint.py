"""Translate the constraints of a caller to regular expressions, and keep the guides compiled from them."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

from gesso.chat.tokenizer import Tokenizer
from gesso.constraints.automaton import Automaton, beginning, compile_regex
from gesso.constraints.grammar import grammar_regex
from gesso.constraints.guide import Guide
from gesso.constraints.limits import Limits
from gesso.constraints.regex import literal
from gesso.constraints.schema.compile import schema_regex
from gesso.constraints.tools import MARKS, TAGS, calls_regex, chosen
from gesso.constraints.words import Words
from gesso.errors import InputError

NAMES = ("choice", "regex", "json_schema", "grammar")
KEPT = 32  # compiled constraints
KEPT_BYTES = 256 * 2**20  # of all their tables; the newest constraint is kept at any size


class Guides:
    """The compiled constraints of one model. Each constraint is compiled once; a typical one takes at most a second."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        eos: frozenset[int],
        limits: Limits | None = None,
        *,
        apart: bool = True,
    ) -> None:
        """`apart`: compile in a child process; see `compile_regex`."""
        self.tokenizer, self.vocab_size, self.eos, self.apart = tokenizer, vocab_size, eos, apart
        self.padding = frozenset() if tokenizer.pad_id is None else frozenset([tokenizer.pad_id])
        self.limits = limits or Limits()
        self._lock = Lock()  # a server compiles in a thread beside its engine
        self._kept: OrderedDict[tuple[str, str], Guide] = OrderedDict()

    def guide(self, **given: Any) -> Guide | None:
        """Return the guide for at most one of `choice`, `regex`, `json_schema` and `grammar`; None without any."""
        regex = self._regex(given)
        return None if regex is None else self.compiled(regex)

    def within(self, before: str, after: str, **given: Any) -> Guide | None:
        """Return the guide for a text between two given texts. The generated text includes both.

        Without a constraint, the text must only begin with `before`.
        """
        regex = self._regex(given)
        if regex is not None:
            self.compiled(regex)  # by itself: inside the group, the brackets of "a)(b" would be balanced
            comment_end = "\n" if "(?x" in regex else ""
            return self.compiled(f"{literal(before).text}(?:{regex}{comment_end}){literal(after).text}")
        if not before:
            return None
        return self._kept_or(("beginning", before), lambda: self._guide(beginning(before.encode()), self.words))

    def calls(
        self, tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any], parallel: bool
    ) -> Guide | None:
        """Return the guide for tool calls; None if no call is required."""
        functions = chosen(tools, choice)
        if not functions:
            return None
        self.check_tags()
        return self.compiled(calls_regex(functions, parallel=parallel, limits=self.limits), tools=True)

    def warm_up(self) -> None:
        """Build the vocabulary tables now instead of with the first constraint."""
        _ = self.words, self._words_and_tags

    def check_tags(self) -> None:
        """Reject tool calls if the tokenizer lacks their special tokens."""
        if missing := [tag for tag in TAGS if self.tokenizer.id_of(tag) is None]:
            raise InputError(f"this checkpoint has no token {missing[0]}, which tool calls need; use another model")

    def compiled(self, regex: str, *, tools: bool = False) -> Guide:
        """Return the guide of a regular expression. With `tools`, its marks stand for the tags of tool calls."""
        words = self._words_and_tags if tools else self.words

        def compile_guide() -> Guide:
            automaton = compile_regex(regex, self.limits, apart=self.apart)
            return self._guide(automaton.marked(MARKS) if tools else automaton, words)

        return self._kept_or(("tools" if tools else "plain", regex), compile_guide)

    def restored(self, key: str, data: bytes, *, tools: bool) -> Guide:
        """Return a guide that another process has compiled (`Guide.to_bytes`). The key identifies its content."""
        words = self._words_and_tags if tools else self.words
        return self._kept_or(("restored", key), lambda: Guide.from_bytes(data, words, self.eos, self.padding))

    def _regex(self, given: Mapping[str, Any]) -> str | None:
        named = [name for name in NAMES if given.get(name) is not None]
        if len(named) > 1:
            raise InputError(f"{' and '.join(named)} were given; a text has one constraint")
        return expression(named[0], given[named[0]], self.limits) if named else None

    def _guide(self, automaton: Automaton, words: Words) -> Guide:
        guide = Guide(automaton, words, self.eos, self.padding)
        _ = guide.moves  # computed now, while one caller waits, rather than in a pass of the engine, where all wait
        return guide

    def _kept_or(self, key: tuple[str, str], make: Callable[[], Guide]) -> Guide:
        """Return the kept guide, or make and keep it. Drop the guides used least recently beyond the limits."""
        with self._lock:
            guide = self._kept.get(key)
        if guide is None:
            guide = make()
        with self._lock:
            self._kept[key] = guide
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT or (len(self._kept) > 1 and self._bytes() > KEPT_BYTES):
                self._kept.popitem(last=False)
        return guide

    def _bytes(self) -> int:
        return sum(guide.nbytes for guide in self._kept.values())

    @cached_property
    def words(self) -> Words:
        return Words.of(self.tokenizer, self.vocab_size)

    @cached_property
    def _words_and_tags(self) -> Words:
        named = {self.tokenizer.id_of(tag): MARKS[mark] for tag, mark in TAGS.items()}
        return Words.of(self.tokenizer, self.vocab_size, {token: m for token, m in named.items() if token is not None})


def expression(name: str, value: Any, limits: Limits) -> str:
    """Return the regular expression of a constraint, given by its name in `NAMES`."""
    match name:
        case "choice":
            return _choice(value)
        case "json_schema":
            if not isinstance(value, (Mapping, bool)):
                raise InputError(f"json_schema must be a schema (an object, true or false), got {value!r:.80}")
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
    return "|".join(literal(text).text for text in texts)
