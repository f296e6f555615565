"""Requests to the engine and their checks. Imports no torch: the server checks requests that another process runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from gesso.constraints.guide import Guide
from gesso.constraints.reach import Reach
from gesso.errors import InputError
from gesso.model.config import Config
from gesso.settings import Diffusion

if TYPE_CHECKING:
    from gesso.engine.events import Draft


@dataclass(frozen=True, kw_only=True)
class Request:
    prompt: tuple[int, ...]
    max_new_tokens: int
    diffusion: Diffusion = field(default_factory=Diffusion)
    seed: int = 0
    eos: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    # Token at a position of the new text, counted from its first token; it never changes. Up to the last pin the text
    # cannot end, whatever the model writes there.
    pins: Mapping[int, int] = field(default_factory=dict)
    guide: Guide | None = None  # a constraint the whole new text keeps to
    free_first: bool = False  # the first half of a canvas's steps is not held to it: the model may keep it by itself
    # A text that begins with one of these would be empty: its first canvas is drawn once more with another hash.
    never_first: frozenset[int] = frozenset()
    # The text of these tokens may change with the token after them: bytes that only together are a character.
    unsure: frozenset[int] = frozenset()
    # Have commits say how likely their tokens were, and so many others beside each. None: not wanted.
    top_logprobs: int | None = None
    draft_logprobs: int | None = None  # the same of drafts, of all positions of a canvas after every step
    resume: "Draft | None" = None  # go on from a draft of an earlier run of the same request

    @property
    def cache_tokens(self) -> int:
        """The most tokens that the request's row of the cache has to hold."""
        return len(self.prompt) + self.max_new_tokens

    def check(self, config: Config, max_length: int) -> None:
        """Raise InputError for what cannot be run."""
        self._check_types()
        if not self.prompt:
            raise InputError("the prompt is empty; give at least one token (a checkpoint's bos token will do)")
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not 0 <= self.seed < 2**64:
            raise InputError(f"seed must be between 0 and 2**64 - 1, got {self.seed}")
        if len(self.prompt) + self.max_new_tokens > max_length:
            raise InputError(
                f"context overflow: a prompt of {len(self.prompt)} tokens and {self.max_new_tokens} new ones "
                f"exceed the context of {max_length}; shorten the prompt or lower max_new_tokens"
            )
        _check_vocabulary("prompt", self.prompt, config)
        for position, token in self.pins.items():
            if not 0 <= position < self.max_new_tokens:
                raise InputError(
                    f"pin at position {position} is outside the new text of max_new_tokens={self.max_new_tokens}"
                )
            if not 0 <= token < config.vocab_size:
                raise InputError(f"pin {token} at position {position} is outside the vocabulary of {config.vocab_size}")
        for name, count in self._counts().items():
            if not 0 <= count <= config.vocab_size:
                raise InputError(f"{name} must be between 0 and {config.vocab_size}, got {count}")
        if self.guide is not None:
            self.reach.check()
        if any(not text for text in self.stop):
            raise InputError("a stop string is empty; it would end every text at once")
        if self.resume is not None:
            self._check_resume(self.resume, config)

    def _check_types(self) -> None:
        integers = {"max_new_tokens": self.max_new_tokens, "seed": self.seed}
        integers |= self._counts()
        for position, token in self.pins.items():
            integers |= {"the position of a pin": position, f"the pin at {position}": token}
        for name, value in integers.items():
            if not _is_integer(value):
                raise InputError(f"{name} must be an integer, got {value!r}")
        if (i := _not_an_integer(self.prompt)) is not None:
            raise InputError(f"token {i} of the prompt must be an integer, got {self.prompt[i]!r}")
        for text in self.stop:
            if not isinstance(text, str):
                raise InputError(f"a stop string must be text, got {text!r}")

    def _counts(self) -> dict[str, int]:
        named = {"top_logprobs": self.top_logprobs, "draft_logprobs": self.draft_logprobs}
        return {name: count for name, count in named.items() if count is not None}

    @cached_property
    def reach(self) -> Reach:
        """Where a text under this request's constraint can still go, with its pins and its length."""
        assert self.guide is not None, "only where there is a constraint"
        return Reach(self.guide, self.pins, self.max_new_tokens)

    def _check_resume(self, draft: "Draft", config: Config) -> None:
        """A draft goes on only in the request it came from; seed and the settings of the steps to come may differ."""
        canvas, done = draft.canvas, len(draft.before)
        if canvas.reason is not None:
            raise InputError("resume: this draft is the last of its canvas; give an earlier one")
        if self.prompt != draft.request.prompt:
            raise InputError("resume: the draft was written after another prompt")
        if canvas.step >= self.diffusion.steps:
            raise InputError(f"resume: the draft has taken {canvas.step} steps already; steps must be more than that")
        length = self.length_after(done, config)
        if len(canvas.tokens_C) != length:
            raise InputError(
                f"resume: the draft's canvas has {len(canvas.tokens_C)} tokens, with this canvas_length and "
                f"max_new_tokens it would have {length}"
            )
        if self.pins != draft.request.pins:
            raise InputError("resume: the draft was written under other pins")
        if self.guide is not draft.request.guide:
            raise InputError("resume: the draft was written under another constraint")

    def canvas_length(self, config: Config) -> int:
        return self.diffusion.canvas_length or config.canvas_length

    def length_after(self, done: int, config: Config) -> int:
        """How long the canvas after `done` new tokens is: no longer than what is still wanted."""
        return min(self.canvas_length(config), self.max_new_tokens - done)


@dataclass(frozen=True, kw_only=True)
class Score:
    """A request for the log-probability of each of several texts after one prompt, by the causal encoder.

    A log-probability is in nats, and the sum over the tokens of a text.
    """

    prompt: tuple[int, ...]
    texts: tuple[tuple[int, ...], ...]

    @property
    def cache_tokens(self) -> int:
        """The most tokens that the request's row of the cache has to hold; the last one of a text is never read."""
        return len(self.prompt) + max(map(len, self.texts)) - 1

    def check(self, config: Config, max_length: int) -> None:
        """Raise InputError for a request that cannot be run."""
        if not self.prompt:
            raise InputError("the prompt is empty; give at least one token (a checkpoint's bos token will do)")
        if not self.texts or not all(self.texts):
            raise InputError("there is nothing to score: give at least one text, and at least one token per text")
        for name, tokens in (("prompt", self.prompt), *(("text", text) for text in self.texts)):
            if (i := _not_an_integer(tokens)) is not None:
                raise InputError(f"{name} token {tokens[i]!r} must be an integer")
            _check_vocabulary(name, tokens, config)
        if self.cache_tokens > max_length:
            raise InputError(
                f"context overflow: a prompt of {len(self.prompt)} tokens and a text of {max(map(len, self.texts))} to "
                f"score exceed the context of {max_length}; shorten the prompt or the text"
            )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _not_an_integer(tokens: tuple[int, ...]) -> int | None:
    """Return the position of the first token that is no integer."""
    if set(map(type, tokens)) <= {int}:  # nearly always; a prompt can have very many tokens
        return None
    return next((i for i, token in enumerate(tokens) if not _is_integer(token)), None)


def _check_vocabulary(name: str, tokens: tuple[int, ...], config: Config) -> None:
    for token in (min(tokens), max(tokens)):
        if not 0 <= token < config.vocab_size:
            raise InputError(f"{name} token {token} is outside the vocabulary of {config.vocab_size}")
