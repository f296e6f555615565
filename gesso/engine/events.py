"""Events of the engine: drafts of a canvas, committed text, and the end of a request."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gesso.diffusion.canvas import Canvas
from gesso.engine.final_text import Decode, final_tokens
from gesso.engine.request import Request

Finish = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, found in the KV cache
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
    stop: str | None = field(default=None, kw_only=True)  # the stop string that ended the text
    warnings: tuple[str, ...] = field(default=(), kw_only=True)  # keywords and formats of the schema without effect


@dataclass(frozen=True)
class Draft:
    """A canvas after a denoising step. Pass it as `resume=` to continue from exactly this state."""

    request_id: int
    request: Request = field(repr=False)
    canvas: Canvas
    before: tuple[int, ...]  # tokens committed in earlier canvases
    decode: Decode = field(repr=False)
    likely: "tuple[Likely, ...]" = field(default=(), repr=False)  # one per position, with `draft_logprobs`
    kind: Literal["draft"] = "draft"

    @property
    def steps(self) -> int:
        """Upper limit of the steps of this canvas."""
        return self.request.diffusion.steps

    @property
    def tokens(self) -> list[int]:
        """The likeliest token at each position."""
        return self.canvas.result_C.tolist()

    @property
    def text(self) -> str:
        return self.decode(self.tokens)

    @property
    def entropy(self) -> list[float]:
        return self.canvas.history[-1].entropy_C.tolist()

    @property
    def stable(self) -> list[bool]:
        """Per position: whether it accepted its token and predicts the same one as a step ago."""
        return self._stable_C.tolist()

    @property
    def _stable_C(self) -> Tensor:
        history, accepted_C = self.canvas.history, self.canvas.accepted_C
        if len(history) < 2 or accepted_C is None:
            return torch.zeros_like(self.canvas.tokens_C, dtype=torch.bool)
        return (history[-1].argmax_C == history[-2].argmax_C) & accepted_C

    @property
    def states(self) -> str:
        """One letter per position: p pinned by the caller, f final, s stable, a accepted in this step, . open."""
        canvas, letters_C = self.canvas, torch.full_like(self.canvas.tokens_C, ord("."))
        if canvas.accepted_C is not None:
            letters_C[canvas.accepted_C] = ord("a")
            letters_C[self._stable_C] = ord("s")
        if canvas.settled_C is not None:
            letters_C[canvas.settled_C] = ord("f")
        text, start = bytearray(letters_C.tolist()), len(self.before)
        for at in self.request.pins:
            if start <= at < start + len(text):
                text[at - start] = ord("p")
        return text.decode()

    @property
    def final_tokens(self) -> tuple[int, ...]:
        """The tokens of the text so far whose text is final and can be shown. See `Diffusion.settle`."""
        return final_tokens(self.request, self.canvas, self.before, self.decode)


@dataclass(frozen=True)
class Likely:
    """Log-probabilities at one position by the last prediction of a canvas, in nats."""

    token: float  # of the token at this position
    top: tuple[tuple[int, float], ...]  # the likeliest tokens, in order


@dataclass(frozen=True)
class Commit:
    """The text that a finished canvas adds. The texts of all commits make up the result's text."""

    request_id: int
    index: int
    tokens: tuple[int, ...]
    text: str
    likely: tuple[Likely, ...] = ()  # one per token, with `top_logprobs`
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
class Scored:
    """The end of a request for log-probabilities: one per text, in order; fewer if the request was cancelled."""

    request_id: int
    log_likelihoods: tuple[float, ...]
    usage: Usage
    likely: tuple[tuple[Likely, ...], ...] = ()  # per text, one per token, with `Score.top_logprobs`
    kind: Literal["scored"] = "scored"


@dataclass(frozen=True)
class Failed:
    """The end of a request by an error: in its sampler or stopping rule, in a pass, or from lack of memory.

    Other requests are not affected.
    """

    request_id: int
    error: Exception
    kind: Literal["failed"] = "failed"


Event = Draft | Commit | Done | Scored | Failed
