"""What the engine hands out while it works: drafts of a canvas, committed text, and the end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from gesso.diffusion.canvas import Canvas
from gesso.engine.standing import standing

if TYPE_CHECKING:
    from gesso.engine.request import Request

Decode = Callable[[Sequence[int]], str]
Finish = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, found in the cache
    completion_tokens: int = 0
    denoising_steps: int = 0
    canvases: int = 0
    redrawn: int = 0  # canvases drawn again because the answer would have been empty

    @property
    def tokens_per_step(self) -> float:
        return self.completion_tokens / self.denoising_steps if self.denoising_steps else 0.0


@dataclass(frozen=True)
class Result:
    text: str
    tokens: tuple[int, ...]
    finish_reason: Finish
    usage: Usage
    seed: int


@dataclass(frozen=True)
class Draft:
    """A canvas after one more step. Give it to `resume=` to go on from exactly here."""

    request_id: int
    request: "Request" = field(repr=False)
    canvas: Canvas
    before: tuple[int, ...]  # tokens committed in earlier canvases
    decode: Decode = field(repr=False)
    kind: Literal["draft"] = "draft"

    @property
    def steps(self) -> int:
        """The most this canvas may take."""
        return self.request.diffusion.steps

    @property
    def tokens(self) -> list[int]:
        """The likeliest token of each position."""
        return self.canvas.result_C.tolist()

    @property
    def text(self) -> str:
        return self.decode(self.tokens)

    @property
    def entropy(self) -> list[float]:
        return self.canvas.history[-1].entropy_C.tolist()

    @property
    def settled(self) -> list[bool]:
        """The positions that took their predicted token and predict the same one as a step ago."""
        if len(self.canvas.history) < 2 or self.canvas.accepted_C is None:
            return [False] * len(self.canvas.tokens_C)
        unchanged_C = self.canvas.history[-1].argmax_C == self.canvas.history[-2].argmax_C
        return (unchanged_C & self.canvas.accepted_C).tolist()

    @property
    def standing(self) -> tuple[int, ...]:
        """The tokens of the text so far that will not change: their text may be shown. See `Diffusion.settle`."""
        return standing(self)


@dataclass(frozen=True)
class Likely:
    """What the last prediction of a canvas said of one position, in natural logarithms of probabilities."""

    token: float  # of the token that stands there
    top: tuple[tuple[int, float], ...]  # the likeliest tokens, the first first


@dataclass(frozen=True)
class Commit:
    """What a finished canvas adds to the text. The texts of all commits make up the result's."""

    request_id: int
    index: int
    tokens: tuple[int, ...]
    text: str
    likely: tuple[Likely, ...] = ()  # one a token, for a request with `top_logprobs`
    kind: Literal["commit"] = "commit"


@dataclass(frozen=True)
class Done:
    request_id: int
    result: Result
    kind: Literal["done"] = "done"

    @property
    def text(self) -> str:
        return self.result.text


@dataclass(frozen=True)
class Failed:
    """The request's own code, a sampler or a stopping rule, raised; the request has ended, the others go on."""

    request_id: int
    error: Exception
    kind: Literal["failed"] = "failed"


Event = Draft | Commit | Done | Failed
