"""Compile constraints to guides, and cache them."""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import Any

from gesso.chat.tokenizer import Tokenizer
from gesso.constraints.automaton import Automaton
from gesso.constraints.budget import at_most
from gesso.constraints.free_calls import free_calls
from gesso.constraints.grammar import grammar_term
from gesso.constraints.guide import Guide
from gesso.constraints.limits import Limits
from gesso.constraints.regex import regex_term
from gesso.constraints.schema.compile import CompiledConstraint, schema_term
from gesso.constraints.schema.options import SchemaOptions
from gesso.constraints.spec import NAMES, ConstraintSpec
from gesso.constraints.stored import from_bytes
from gesso.constraints.term import Term
from gesso.constraints.terms import ANYTHING, alt, literal, seq
from gesso.constraints.thinking import TAGS as THINKING_TAGS
from gesso.constraints.thinking import after_thinking
from gesso.constraints.tools import TAGS, calls_term, chosen
from gesso.constraints.words import Words
from gesso.errors import InputError

MAX_CACHED = 32  # compiled constraints
MAX_CACHED_BYTES = 256 * 2**20  # of all their tables; the newest constraint is kept at any size


class Guides:
    """The compiled constraints of one model. Each constraint is compiled once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        eos: frozenset[int],
        limits: Limits = Limits(),  # noqa: B008
        cached_bytes: int = MAX_CACHED_BYTES,
    ) -> None:
        self.cached_bytes = cached_bytes
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eos = eos
        self.limits = limits
        self.padding = frozenset() if tokenizer.pad_id is None else frozenset([tokenizer.pad_id])
        self._lock = Lock()  # a server compiles in a thread while the engine runs in another
        self._cached: OrderedDict[str, Guide] = OrderedDict()

    def guide(self, **given: Any) -> Guide | None:
        """Return the guide for at most one of `choice`, `regex`, `json_schema` and `grammar`; None without any.

        `thinking` and `schema_options` are those of `within`.
        """
        return self.within("", "", **given)

    def within(
        self,
        before: str,
        after: str,
        *,
        thinking: bool = False,
        schema_options: SchemaOptions | None = None,
        **given: Any,
    ) -> Guide | None:
        """Return the guide for a text between two given texts. The generated text includes both.

        Without a constraint, the text must only begin with `before`. With `thinking`, the model may think first.
        """
        named = [name for name in NAMES if given.get(name) is not None]
        if len(named) > 1:
            raise InputError(f"{' and '.join(named)} were given; a text has one constraint")
        if not named:
            if not before:
                return None
            return self._cached_or(f"beginning {before}", lambda: CompiledConstraint(seq(literal(before), ANYTHING)))
        name = named[0]
        options = schema_options or SchemaOptions()
        if schema_options is not None and name != "json_schema":
            raise InputError(f"schema_options are for json_schema, not for {name}; leave them out")

        def compile_between() -> CompiledConstraint:
            constraint = compiled(name, given[name], self.limits, options)
            term = seq(literal(before), constraint.term, literal(after))
            return replace(constraint, term=after_thinking(term) if thinking else term)

        key = _key(name, given[name], before, after, thinking, vars(options))
        return self._cached_or(key, compile_between, tools=thinking)

    def calls(
        self,
        tools: Sequence[Mapping[str, Any]],
        choice: str | Mapping[str, Any],
        parallel: bool,
        thinking: bool = False,
    ) -> Guide | None:
        """Return the guide for tool calls; None if there are none.

        With the choice "auto", the model may write any text, and calls with valid arguments.
        """
        required = chosen(tools, choice)
        if required:
            self.check_tags()
        elif choice != "auto" or not tools or not self.has_tags:
            return None

        def compile_calls() -> CompiledConstraint:
            if required:
                calls = calls_term(required, parallel=parallel, limits=self.limits)
                return replace(calls, term=after_thinking(calls.term)) if thinking else calls
            calls = free_calls([tool["function"] for tool in tools], parallel=parallel, limits=self.limits)
            # If no call is required, the text may begin with thoughts even without `thinking`.
            return replace(calls, term=after_thinking(calls.term))

        key = _key("tools", required or tools, bool(required), parallel, thinking)
        return self._cached_or(key, compile_calls, tools=True)

    def of(self, spec: ConstraintSpec) -> Guide | None:
        """Return the guide of a constraint that a caller has given; None if it allows every text."""
        if spec.tools:
            return self.calls(spec.tools, spec.tool_choice, spec.parallel, spec.thinking)
        return self.guide(thinking=spec.thinking, schema_options=spec.schema_options, **spec.given)

    def warm_up(self, *, searches: bool = False) -> None:
        """Build the vocabulary tables now instead of with the first constraint. `searches`: also those of searches."""
        for words in (self.words, self._words_and_tags):
            if searches:
                words.warm_up()

    def check_tags(self) -> None:
        """Reject tool calls if the tokenizer lacks their special tokens."""
        if missing := self._missing_tags:
            raise InputError(f"this checkpoint has no token {missing[0]}, which tool calls need; use another model")

    @property
    def has_tags(self) -> bool:
        """Whether the tokenizer has the special tokens of tool calls."""
        return not self._missing_tags

    @property
    def _missing_tags(self) -> list[str]:
        return [tag for tag in TAGS if self.tokenizer.id_of(tag) is None]

    def restored(self, key: str, data: bytes, *, tools: bool) -> Guide:
        """Return the guide of a term that another process has compiled. The key identifies its content."""
        return self._cached_or(f"restored {key}", lambda: CompiledConstraint(from_bytes(data)), tools=tools)

    def _cached_or(self, key: str, make: Callable[[], CompiledConstraint], *, tools: bool = False) -> Guide:
        """Return the cached guide, or make and cache it. Drop the least recently used guides beyond the limits."""
        with self._lock:
            guide = self._cached.get(key)
        if guide is None:
            with at_most(self.limits.terms, self.limits.seconds):
                constraint = make()
                automaton = Automaton(constraint.term, self.limits)
            guide = Guide(
                automaton=automaton,
                words=self._words_and_tags if tools else self.words,
                eos=self.eos,
                padding=self.padding,
                warnings=constraint.warnings,
                checked=constraint.checked,
            )
        with self._lock:
            self._cached[key] = guide
            self._cached.move_to_end(key)
            while len(self._cached) > MAX_CACHED or (len(self._cached) > 1 and self._bytes() > self.cached_bytes):
                self._cached.popitem(last=False)
        return guide

    def _bytes(self) -> int:
        return sum(guide.nbytes for guide in self._cached.values())

    @cached_property
    def words(self) -> Words:
        return Words.of(self.tokenizer, self.vocab_size)

    @cached_property
    def _words_and_tags(self) -> Words:
        bytes_of_tags: dict[int, int] = {}
        for tag, byte in {**TAGS, **THINKING_TAGS}.items():
            token = self.tokenizer.id_of(tag)
            if token is not None:
                bytes_of_tags[token] = byte
        return Words.of(self.tokenizer, self.vocab_size, bytes_of_tags)


def compiled(name: str, value: Any, limits: Limits, options: SchemaOptions) -> CompiledConstraint:
    """Compile a constraint, given by its name in `NAMES`."""
    match name:
        case "choice":
            return CompiledConstraint(_choice(value))
        case "json_schema":
            if not isinstance(value, (Mapping, bool)):
                raise InputError(f"json_schema must be a schema (an object, true or false), got {value!r:.80}")
            return schema_term(value, limits=limits, options=options)
        case "regex" | "grammar" if not isinstance(value, str):
            raise InputError(f"{name} must be text, got {type(value).__name__}")
        case "grammar":
            return CompiledConstraint(grammar_term(value, limits=limits))
    return CompiledConstraint(regex_term(value, limits=limits))


def _choice(texts: Sequence[str]) -> Term:
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"choice must be a list of texts, got {texts!r:.80}")
    if not texts or "" in texts:
        raise InputError("choice must have at least one text, and none may be empty")
    return alt(literal(text) for text in texts)


def _key(name: str, *content: Any) -> str:
    """Return a text that identifies a constraint."""
    try:
        return f"{name} {json.dumps(content, default=str)}"
    except RecursionError:
        raise InputError("the constraint nests too deeply; flatten it") from None
