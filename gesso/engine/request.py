"""Requests to the engine and their checks.

Imports no torch: the server process checks requests that another process runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from gesso.constraints.answer_check import AnswerCheck
from gesso.constraints.guide import Guide
from gesso.constraints.reach import Reach
from gesso.constraints.spec import ConstraintSpec
from gesso.errors import ContextOverflow, InputError
from gesso.images.image import Image
from gesso.images.tokens import blocks, image_of, image_tokens, is_image
from gesso.model.config import Config
from gesso.settings import Diffusion

if TYPE_CHECKING:
    from gesso.diffusion.canvas import Canvas  # imports torch

SEEDS = 2**64
ATTEMPTS = 3  # at an answer that must be valid; the last one fails


class Resumable(Protocol):
    """A draft that a request can continue from: `gesso.engine.events.Draft`."""

    @property
    def request(self) -> "Request": ...

    @property
    def canvas(self) -> "Canvas": ...

    @property
    def before(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to continue a prompt by `max_new_tokens` tokens at most."""

    prompt: tuple[int, ...]  # with the soft tokens of `images`, see `gesso.images.tokens`
    max_new_tokens: int
    images: tuple[Image, ...] = field(default=(), compare=False, repr=False)  # the prompt names them
    diffusion: Diffusion = field(default_factory=Diffusion)
    seed: int = 0
    eos: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    # Token by position in the new text, counted from its first token. The text cannot end before the last pin,
    # whatever the model predicts there.
    pins: Mapping[int, int] = field(default_factory=dict)
    constraint: ConstraintSpec | None = None  # to be compiled and attached before the request can run
    guide: Guide | None = None  # constraint on the whole new text
    # By which the finished text is checked. The constraint may not enforce all of a JSON schema.
    validate: AnswerCheck | None = field(default=None, compare=False, repr=False)
    warnings: tuple[str, ...] = ()  # for the result: the parts of the constraint that have no effect
    free_first: bool = False  # enforce it only in the second half of a canvas's steps: the model may satisfy it unaided
    # A text that begins with one of these tokens would be empty: its first canvas is drawn again, with other noise.
    never_first: frozenset[int] = frozenset()
    # Tokens whose text depends on the tokens after them: bytes of a character.
    byte_tokens: frozenset[int] = frozenset()
    # Report the log-probability of each committed token and of this many of the likeliest tokens; None: no report.
    top_logprobs: int | None = None
    draft_logprobs: int | None = None  # the same for every position of every draft
    resume: Resumable | None = None  # continue from a draft of an earlier run of the same request
    # Report the log-probability of each of these texts in the first prediction and write nothing: see `Runner.compare`.
    compared: tuple[tuple[int, ...], ...] = ()
    adapter: str | None = None  # None: the base model
    # Whether this very request has been checked. One that `dataclasses.replace` makes of it has not.
    is_checked: bool = field(default=False, init=False, compare=False, repr=False)

    def with_seed(self, seed: int) -> "Request":
        """Return the request with another seed from 0 to 2**64 - 1, by which nothing has to be checked again."""
        again = replace(self, seed=seed)
        object.__setattr__(again, "is_checked", self.is_checked)
        return again

    @property
    def cache_tokens(self) -> int:
        """Upper bound of the tokens in the request's row of the KV cache."""
        draft = (self.diffusion.canvas_length or 0) if self.diffusion.verified else 0  # beyond the end of the text
        return len(self.prompt) + self.max_new_tokens + draft

    def check(self, config: Config, max_length: int) -> None:
        """Raise InputError for a request that cannot be run."""
        self._check_types()
        if not self.prompt:
            raise InputError("the prompt is empty; give at least one token (a checkpoint's bos token will do)")
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not 0 <= self.seed < 2**64:
            raise InputError(f"seed must be between 0 and 2**64 - 1, got {self.seed}")
        self.check_context(max_length)
        if self.images:
            self._check_images(config)
        else:
            _check_vocabulary("prompt", self.prompt, config, images="give the request its images")
        self._check_compared(config)
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
        if self.diffusion.verified:
            self._check_verified()
        if any(not text for text in self.stop):
            raise InputError("a stop string is empty; it would end every text at once")
        if self.resume is not None:
            self._check_resume(self.resume, config)
        if self.constraint is None:
            self.check_guide()

    def check_context(self, max_length: int) -> None:
        if len(self.prompt) + self.max_new_tokens > max_length:
            raise ContextOverflow(len(self.prompt), self.max_new_tokens, max_length)

    def check_guide(self) -> None:
        """Check the compiled constraint, if there is one. After this, all of the request has been checked."""
        if self.guide is not None:
            self.reach.check()
        if self.resume is not None and self.guide is not self.resume.request.guide:
            raise InputError("resume: the constraint of the draft differs from that of this request")
        object.__setattr__(self, "is_checked", True)

    def _check_images(self, config: Config) -> None:
        """Reject images that the model cannot read, and prompts whose soft tokens are not those of whole images."""
        if not config.has_image_tokens:
            raise InputError("this model reads no images: its vocabulary has no tokens for them; leave the images out")
        for number, each in enumerate(self.images):
            _check_image(f"image {number}", each, config)
        images = {image.digest: image for image in self.images}
        for block in self.blocks:
            image = images.get(image_of(self.prompt[block.start])[0])
            if image is None:
                raise InputError(
                    f"token {block.start} of the prompt belongs to an image that is not among the request's images"
                )
            if self.prompt[block.start : block.stop] != image_tokens(image.digest, image.tokens):
                raise InputError(
                    f"the prompt has {len(block)} soft tokens at token {block.start}, not all {image.tokens} of their "
                    "image in order; an image cannot be cut"
                )
        if is_image(self.prompt[-1]) and self.diffusion.by_token:  # predicts from the last token of the prompt
            raise InputError("the prompt ends with an image; put text after it, at least the end-of-image token")
        _check_vocabulary("prompt", tuple(token for token in self.prompt if not is_image(token)), config)

    @cached_property
    def blocks(self) -> Sequence[range]:
        """Where the images of the prompt are."""
        return blocks(self.prompt) if self.images else ()

    def image(self, token: int) -> Image:
        """Return the image that a soft token of the prompt belongs to."""
        digest, _ = image_of(token)
        return next(image for image in self.images if image.digest == digest)

    def _check_verified(self) -> None:
        """Reject options that need a canvas which settles."""
        constraint = self.constraint or self.guide
        for name, given in {"pins": self.pins, "a constraint": constraint, "resume": self.resume}.items():
            if given:
                raise InputError(f"write=verified does not support {name}; leave it out, or give write=canvas")

    def _check_compared(self, config: Config) -> None:
        room = self.length_after(0, config) - bool(self.eos)
        for text in self.compared:
            if not 0 < len(text) <= room:
                raise InputError(f"a text to compare must have 1 to {room} tokens, as the canvas, got {len(text)}")
            _check_vocabulary("text", text, config)

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
        """The continuations that constraint, pins and length of this request allow."""
        assert self.guide is not None, "the request has no constraint"
        return Reach(self.guide, self.pins, self.max_new_tokens)

    def _check_resume(self, draft: Resumable, config: Config) -> None:
        """Reject a draft of another request. The seed and the settings of later steps may differ."""
        canvas, done = draft.canvas, len(draft.before)
        if canvas.reason is not None:
            raise InputError("resume: this draft is the last of its canvas; give an earlier draft")
        if self.prompt != draft.request.prompt:
            raise InputError("resume: the prompt of the draft differs from that of this request")
        if self.adapter != draft.request.adapter:
            raise InputError("resume: the adapter of the draft differs from that of this request")
        if canvas.step >= self.diffusion.steps:
            raise InputError(f"resume: the draft has already taken {canvas.step} steps; set steps to more than that")
        length = self.length_after(done, config)
        if len(canvas.tokens_C) != length:
            raise InputError(
                f"resume: the draft's canvas has {len(canvas.tokens_C)} tokens, with this canvas_length and "
                f"max_new_tokens it would have {length}"
            )
        if self.pins != draft.request.pins:
            raise InputError("resume: the pins of the draft differ from those of this request")

    def canvas_length(self, config: Config) -> int:
        """Return the length of a full canvas."""
        return self.diffusion.canvas_length or config.canvas_length

    def length_after(self, done: int, config: Config) -> int:
        """Return the length of the canvas after `done` new tokens; the last one may be shorter than the others."""
        return min(self.canvas_length(config), self.max_new_tokens - done)


@dataclass(frozen=True, kw_only=True)
class Score:
    """A request for the log-probability of each of several texts after one prompt, by the causal encoder.

    A log-probability is in nats, and the sum over the tokens of a text.
    """

    prompt: tuple[int, ...]
    texts: tuple[tuple[int, ...], ...]
    # Report the log-probability of each token and of this many of the likeliest tokens; None: sums only.
    top_logprobs: int | None = None
    adapter: str | None = None  # None: the base model

    @property
    def cache_tokens(self) -> int:
        """Upper bound of the tokens in the request's row of the KV cache; the last token of a text is never read."""
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
            _check_vocabulary(name, tokens, config, images="a prompt with images cannot be scored")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= config.vocab_size:
            raise InputError(f"top_logprobs must be between 0 and {config.vocab_size}, got {self.top_logprobs}")
        if self.cache_tokens > max_length:
            raise InputError(
                f"context overflow: a prompt of {len(self.prompt)} tokens and a text of {max(map(len, self.texts))} to "
                f"score exceed the context of {max_length}; shorten the prompt or the text"
            )


def _check_image(name: str, image: Image, config: Config) -> None:
    vision, rows, columns = config.vision, image.rows, image.columns
    side, most = vision.pooling_kernel_size, vision.position_embedding_size
    shape = rows * columns, 3 * vision.patch_size**2
    whole = not rows % side and not columns % side and 0 < min(rows, columns) <= max(rows, columns) <= most
    if not whole or image.patches.shape != shape or image.tokens * side**2 != rows * columns:
        raise InputError(
            f"{name} has patches {list(image.patches.shape)} in {rows} rows and {columns} columns, and {image.tokens} "
            f"tokens; for this model, patches must be [{shape[0]}, {shape[1]}], sides multiples of {side} and at most "
            f"{most}, and {side**2} patches are a token; prepare the image for this model"
        )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _not_an_integer(tokens: tuple[int, ...]) -> int | None:
    """Return the position of the first token that is not an integer, or None."""
    if set(map(type, tokens)) <= {int}:  # the usual case, kept fast: a prompt can have very many tokens
        return None
    return next((i for i, token in enumerate(tokens) if not _is_integer(token)), None)


def _check_vocabulary(name: str, tokens: tuple[int, ...], config: Config, images: str = "") -> None:
    """Reject tokens outside the vocabulary. `images`: the reason to give if they could be soft tokens of images."""
    for token in (min(tokens), max(tokens)):
        if not 0 <= token < config.vocab_size:
            reason = f"; negative tokens stand for images: {images}" if images and is_image(token) else ""
            raise InputError(f"{name} token {token} is outside the vocabulary of {config.vocab_size}{reason}")
