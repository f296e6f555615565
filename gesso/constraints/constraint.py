"""What a caller may ask of a text, as regular expressions; and the guides made of them, kept for the next time."""

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
from gesso.constraints.regex import quote
from gesso.constraints.schema.compile import schema_regex
from gesso.constraints.tools import MARKS, TAGS, calls_regex, chosen
from gesso.constraints.words import Words
from gesso.errors import InputError

NAMES = ("choice", "regex", "json_schema", "grammar")
KEPT = 32  # compiled constraints
KEPT_BYTES = 256 * 2**20  # of all their tables; the newest constraint is kept whatever its size


class Guides:
    """Of one model. Compiling takes a second at most for what people write; the same constraint is compiled once."""

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
        """The guide for at most one of `choice`, `regex`, `json_schema` and `grammar`; None for none of them."""
        named = [name for name in NAMES if given.get(name) is not None]
        if not named:
            return None
        if len(named) > 1:
            raise InputError(f"{' and '.join(named)} were given; a text has one constraint")
        return self.compiled(expression(named[0], given[named[0]], self.limits))

    def within(self, before: str, after: str, **given: Any) -> Guide | None:
        """The same for a text that stands between two others; the text that is written has them, too.

        Without a constraint the text goes on from `before` as it likes, and `after` says nothing.
        """
        inner = self.guide(**given)
        if inner is None:
            if not before:
                return None
            return self._kept_or(("beginning", before), lambda: self._guide(beginning(before.encode()), self.words))
        [(name, value)] = [(name, value) for name, value in given.items() if value is not None]
        own = expression(name, value, self.limits)
        comment_end = "\n" if "(?x" in own else ""
        return self.compiled(f"{quote(before).text}(?:{own}{comment_end}){quote(after).text}")

    def calls(
        self, tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any], parallel: bool
    ) -> Guide | None:
        """The guide for calling tools; None where nothing has to be called."""
        functions = chosen(tools, choice)
        if not functions:
            return None
        self.check_tags()
        return self.compiled(calls_regex(functions, parallel=parallel, limits=self.limits), tools=True)

    def warm_up(self) -> None:
        """Build the vocabulary tables now instead of with the first constraint."""
        _ = self.words, self._words_and_tags

    def check_tags(self) -> None:
        if missing := [tag for tag in TAGS if self.tokenizer.id_of(tag) is None]:
            raise InputError(f"this checkpoint has no token {missing[0]}, in which tool calls are written")

    def compiled(self, regex: str, *, tools: bool = False) -> Guide:
        """Return the guide of a regular expression; with `tools`, its marks stand for the tags of tool calls."""
        words = self._words_and_tags if tools else self.words

        def make() -> Guide:
            automaton = compile_regex(regex, self.limits, apart=self.apart)
            return self._guide(automaton.marked(MARKS) if tools else automaton, words)

        return self._kept_or(("tools" if tools else "plain", regex), make)

    def restored(self, key: str, data: bytes, *, tools: bool) -> Guide:
        """Return a guide that another process has compiled (`Guide.to_bytes`); the key identifies its content."""
        words = self._words_and_tags if tools else self.words
        return self._kept_or(("restored", key), lambda: Guide.from_bytes(data, words, self.eos, self.padding))

    def _guide(self, automaton: Automaton, words: Words) -> Guide:
        guide = Guide(automaton, words, self.eos, self.padding)
        _ = guide.moves  # computed here, where one caller waits, and not in a pass of the engine, where all do
        return guide

    def _kept_or(self, key: tuple[str, str], make: Callable[[], Guide]) -> Guide:
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
