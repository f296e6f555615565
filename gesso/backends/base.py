"""The interface between the engine and the code that runs the network.

The engine plans a pass as pieces: text to encode, and canvases to denoise. A backend runs them and turns hidden states
into predictions. `torch.py` calls the plain model; `cuda/` runs the same pass with fused kernels, and `cpu/` the plain
model with kernels for packed weights. To support other hardware, implement `Backend` and pass it to the engine:
`Engine(model, decode, backend=...)`. The torch backend can be subclassed, so that `run` is all there is to write.

S tokens of a piece, C canvas, T tokens of all canvases, H hidden, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from gesso.diffusion.canvas import Canvas, Process
from gesso.diffusion.noise import Draws
from gesso.diffusion.prediction import Prediction
from gesso.images.image import Image
from gesso.model.cache import KVCache
from gesso.model.transformer import DiffusionGemma
from gesso.settings import Diffusion


@dataclass(frozen=True)
class Piece:
    """Tokens for one row of the cache: text to encode, or a canvas to denoise with its self-conditioning.

    An image is text whose embeddings are its features `image_SH`; its ids are not used. `adapter` is the name of the
    adapter to run it with; None: the base model.
    """

    row: int
    ids_S: Tensor
    causal: bool
    soft_SH: Tensor | None = None
    adapter: str | None = None
    image_SH: Tensor | None = None


# "image": the soft tokens of one image; "next": text whose last token predicts the next one; "verified": text of which
# each token does, after a canvas of the same length that does not see it; "scored": text whose hidden states are read.
Kind = Literal["text", "image", "canvas", "next", "verified", "scored"]
# The hidden states to predict from. In verified decoding a request has two such pieces.
PREDICTING: Mapping[Kind, slice] = {"canvas": slice(None), "verified": slice(None), "next": slice(-1, None)}


class Denoising(Protocol):
    """A request whose canvas, or next token, a pass predicts."""

    canvas: Canvas
    process: Process

    @property
    def needs_all_logits(self) -> bool:
        """Whether its sampler or its stopping rule reads the logits of the whole vocabulary."""
        ...

    @property
    def is_constrained(self) -> bool:
        """Whether the host checks the step, and may have to take it again from a corrected prediction."""
        ...

    @property
    def has_pins(self) -> bool: ...


class Work(Protocol):
    """One request's part of a pass."""

    @property
    def row(self) -> int: ...

    @property
    def adapter(self) -> str | None: ...

    @property
    def texts(self) -> tuple[tuple[int, ...], ...]: ...

    @property
    def pieces(self) -> list[tuple[int, Kind]]:
        """The length and kind of each piece, texts first."""
        ...

    @property
    def denoising(self) -> Denoising | None: ...


@dataclass(frozen=True)
class Step:
    """The outcome of a captured pass for one canvas: its prediction, the canvas after the step, or both.

    A constrained request gets its prediction in any case, with the most likely tokens. A request that needs all logits
    may get neither.
    """

    prediction: Prediction | None
    after: Canvas | None
    hidden_CH: Tensor  # valid until the next pass; of a constrained request also after that


@dataclass(frozen=True)
class Replayed:
    """The outcome of a captured pass."""

    steps: Callable[[], list[Step]]  # of the canvases; waits for the pass, and must be called before the next one
    scored: list[Tensor]  # hidden states [S, H] of each piece of kind "scored"


@dataclass
class Counts:
    """What a process has prepared for its passes so far."""

    captures: int = 0  # passes captured as CUDA graphs
    compilations: int = 0  # variants of kernels
    kernel_loads: int = 0  # variants that an earlier process has compiled, from the cache on disk


class Backend(Protocol):
    model: DiffusionGemma
    captures: bool  # whether `replay` may run a pass
    counts: Counts

    def run(self, pieces: Sequence[Piece], cache: KVCache) -> list[Tensor]:
        """Return the hidden states [S, H] of each piece, and append text to the cache.

        A canvas sees the text that precedes it in the same call. The hidden states of a piece must not depend on the
        other pieces, to the last bit.
        """
        ...

    def see(self, image: Image) -> Tensor:
        """Return the features [S, H] of an image. They must not depend on anything else, to the last bit."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of hidden states [..., H], in float32 and after the softcap."""
        ...

    def logits_of(self, hidden_CH: Tensor, tokens_U: Tensor) -> Tensor:
        """Return the logits [C, U] of these tokens, in float32 and after the softcap.

        They equal those of `logits` up to rounding, and do not depend on the other tokens, to the last bit.
        """
        ...

    def predict(
        self,
        hidden_TH: Tensor,
        temperature_T: Tensor,
        key_T2: Tensor,
        lengths: Sequence[int],
        soft: bool = True,
        likely: bool = False,
    ) -> Prediction:
        """Return the predictions of canvases of these lengths. Candidates are drawn with the keys of `HashDraws`.

        Without `soft`, no self-conditioning is computed. With `likely`, the prediction has the most probable tokens,
        with their logits.
        """
        ...

    def draw_within(self, settings: Diffusion, hidden_CH: Tensor, temperature: float, draws: Draws) -> Tensor:
        """Return one token [C] per position, drawn within the settings' top_k, top_p and min_p."""
        ...

    def replay(self, work: Sequence[Work], cache: KVCache) -> Replayed | None:
        """Run a whole pass, and the steps of its canvases, as one captured unit; None if there is none to use."""
        ...

    def divides(self, work: Sequence[Work]) -> bool:
        """Return whether a pass that cannot be replayed should run in parts: texts, canvases, then single tokens.

        Each of them is more likely to be captured. The results are the same.
        """
        ...

    def expect(self, batch: int, canvas: int, prefill: int) -> None:
        """Prepare for passes of so many canvases, of so many tokens at most, or of so much text.

        Few captured passes should serve all mixtures of them. A server captures them with `capture_next` before it is
        ready.
        """
        ...

    def compile_expected(self, cache: KVCache) -> None:
        """Begin to capture the expected passes before they are needed, as a server does: compile their kernels, as far
        as that is faster before.
        """
        ...

    @property
    def captures_left(self) -> int:
        """The number of passes that a server has to capture; 0 if passes are captured when they are needed."""
        ...

    def capture_next(self, cache: KVCache) -> None:
        """Capture the one of these that is needed most."""
        ...

    def fix_kernels(self) -> None:
        """End the warm-up: from now on, a kernel that does not work is an error. Before, plain operations take its
        place.
        """
        ...

    def adapters_changed(self) -> None:
        """Take note that adapters were attached to the model or removed from it."""
        ...

    def drop_captured(self) -> None:
        """Forget captured passes and their memory: the weights have changed, or memory is short."""
        ...
