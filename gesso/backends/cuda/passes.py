"""What a captured pass consists of: its operations, and the parts of the requests' work."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from torch import Tensor

from gesso.backends.base import Denoising, Kind, Piece, Work
from gesso.backends.cuda.kernels.segments import Segment
from gesso.backends.cuda.network import Plan
from gesso.diffusion.prediction import Prediction
from gesso.model.cache import KVCache
from gesso.model.transformer import DiffusionGemma

TEXTS: tuple[Kind, ...] = ("text", "scored")


class Passes(Protocol):
    """The operations of a pass, in the order in which a graph captures them."""

    model: DiffusionGemma

    @property
    def can_capture(self) -> bool:
        """Whether a pass reads nothing on the host."""
        ...

    def slot(self, adapter: str | None) -> int:
        """Return the slot of an adapter; -1: the base model."""
        ...

    @property
    def can_pack(self) -> bool:
        """Whether padding never changes the results of other tokens, to the last bit."""
        ...

    def plan(
        self, segments: Sequence[Segment], cache: KVCache, lengths: Sequence[int], longest: int | None = None
    ) -> Plan:
        """Return the plan of pieces of these lengths. No segment is longer than `longest`, by default a piece."""
        ...

    def flow(self, plan: Plan, pieces: Sequence[Piece]) -> list[Tensor]: ...

    def predict(
        self,
        hidden_TH: Tensor,
        temperature_T: Tensor,
        key_T2: Tensor,
        lengths: Sequence[int],
        soft: bool = True,
        likely: bool = False,
    ) -> Prediction: ...


def denoising(work: Sequence[Work]) -> list[Denoising]:
    """Return the requests whose canvases take a step in this pass."""
    return [each for item in work if (each := item.denoising) is not None]


def groups(work: Sequence[Work]) -> int:
    """Return how many of three kinds of work a pass has: texts, canvases, and tokens that are written one by one."""
    last = [item.pieces[-1][1] for item in work]
    texts = any(item.texts and kind != "next" for item, kind in zip(work, last, strict=True))
    return texts + ("canvas" in last) + ("next" in last or "verified" in last)


def has_images(work: Sequence[Work]) -> bool:
    """Return whether a pass reads an image. It cannot be captured: its embeddings are no data of a captured pass."""
    return any(kind == "image" for item in work for _, kind in item.pieces)


def texts_of(work: Sequence[Work]) -> list[int]:
    """Return the tokens of all texts, side by side. Tokens after which the next one is predicted do not count."""
    tokens: list[int] = []
    for item in work:
        for text, (_, kind) in zip(item.texts, item.pieces, strict=False):
            tokens += text if kind in TEXTS else ()
    return tokens


def scored(work: Sequence[Work], hidden_SH: Tensor) -> list[Tensor]:
    """Return the hidden states of each text of kind "scored", from those of all texts side by side."""
    pieces = [piece for item in work for piece in item.pieces if piece[1] in TEXTS]
    ends = accumulate(length for length, _ in pieces)
    return [
        hidden_SH[end - length : end].clone()
        for end, (length, kind) in zip(ends, pieces, strict=True)
        if kind == "scored"
    ]
