"""A request, and what it becomes while it is worked on."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gesso.config import Config
from gesso.diffusion.canvas import Canvas, Process
from gesso.diffusion.samplers import sampler_of
from gesso.engine.events import Draft, Usage
from gesso.errors import InputError
from gesso.guide.automaton import START
from gesso.guide.guide import Guide
from gesso.guide.reach import Reach
from gesso.settings import Diffusion


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
    resume: Draft | None = None  # go on from a draft of an earlier run of the same request

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
        for token in (min(self.prompt), max(self.prompt)):
            if not 0 <= token < config.vocab_size:
                raise InputError(f"prompt token {token} is outside the vocabulary of {config.vocab_size}")
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
        integers |= {f"token {i} of the prompt": token for i, token in enumerate(self.prompt)}
        for position, token in self.pins.items():
            integers |= {"the position of a pin": position, f"the pin at {position}": token}
        for name, value in integers.items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise InputError(f"{name} must be an integer, got {value!r}")
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

    def _check_resume(self, draft: Draft, config: Config) -> None:
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


@dataclass(eq=False)
class Running:
    """The state of a request in the engine: text still to be encoded, then a canvas on top of it."""

    id: int
    request: Request
    process: Process
    canvas: Canvas
    tokens: list[int] = field(default_factory=list)  # finished canvases
    state: int = START  # of the constraint, after them
    row: int = -1
    pending: deque[tuple[int, ...]] = field(default_factory=deque)  # text to encode, piece by piece
    shown: str = ""  # their text, as far as it was handed out
    usage: Usage = field(default_factory=Usage)

    @property
    def asks_for_logits(self) -> bool:
        # A sampler may be a plain function, which has no attributes of its own.
        return getattr(sampler_of(self.request.diffusion), "needs_logits", False)

    @property
    def needs_logits(self) -> bool:
        """Whether a step will: a constraint that had to put the last one right will most likely have to do so again."""
        history = self.canvas.history
        return self.asks_for_logits or (bool(history) and history[-1].corrected)

    def pieces(self, start: int, piece: int, canvas_length: int) -> deque[tuple[int, ...]]:
        """The text from token `start` on, cut where it is always cut: the prompt every `piece` tokens, then canvases.

        The length of a run of tokens decides the order in which its sums are added up. Cuts that depended on the load
        or on what the cache happens to hold would let the last bits, and with them the text, depend on them too.
        """
        prompt, answer = self.request.prompt, tuple(self.tokens)
        cuts = [prompt[i : i + piece] for i in range(start, len(prompt), piece)]
        return deque(cuts + [answer[i : i + canvas_length] for i in range(0, len(answer), canvas_length)])
