"""Examples as tensors: the text, the canvases of its responses, and the noise on these canvases.

B examples, S text of all examples, K canvases of all examples, C canvas, R tokens to predict.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from gesso.diffusion.noise import HashDraws, HashSource
from gesso.images.image import Image
from gesso.train.data import Example
from gesso.train.layout import Ints, Layout

# Entropy bounds of unrolled steps: from less than a sampler accepts at once to nearly the whole canvas. Some canvases
# then have few mistakes, and others many.
BOUNDS = (0.01, 30.0)
MIN_NOISE = 1e-3  # smallest share of replaced tokens
GOLDEN = 0.6180339887  # the fractional parts of its multiples are evenly spread for any count


@dataclass(frozen=True)
class BatchImage:
    """The digest and size of an image in a batch, without its pixels."""

    digest: int
    rows: int  # of patches
    columns: int


@dataclass(frozen=True)
class Batch:
    """Examples as one sequence: see `layout`, which stays on the host."""

    text_S: Tensor
    valid_S: Tensor  # text, not padding
    owner_S: Tensor  # example of each token
    target_R: Tensor  # indices in the text of the tokens that the encoder is trained to predict
    clean_KC: Tensor  # canvases without noise, filled up with eos
    owner_K: Tensor  # example of each canvas
    place_K: Tensor  # index of each canvas in its example
    layout: Layout
    # Canvases of the model's own runs, in place of noise; None: the batch has none, see `train/trajectories.py`.
    recorded_K: Tensor | None = None  # whether the canvas is recorded
    shown_KC: Tensor | None = None  # the recorded canvas
    before_DKC: Tensor | None = None  # the canvases of the D steps before it, for self-conditioning
    temperature_DK: Tensor | None = None  # of their predictions
    steps_K: Ints | None = None  # of the D, as many as there are before the canvas
    # Images in the text; None: the batch has none.
    images: tuple[BatchImage, ...] = ()
    pixels_PI: Tensor | None = None  # patches of all images, one after another
    image_R: Tensor | None = None  # indices in the text of their soft tokens

    @property
    def size(self) -> int:
        return len(self.layout.width_B)

    def to(self, device: torch.device) -> Self:
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Copy to pinned memory, for asynchronous transfers; torch's DataLoader calls this."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        tensors = {name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **tensors)  # type: ignore[arg-type]


@dataclass(frozen=True)
class NextStep:
    """Random draws for one step of the entropy-bound sampler, from a predicted canvas to the next canvas."""

    taken_K: Tensor  # whether the canvas takes the step
    bound_K1: Tensor  # entropy bound of the sampler
    drawn_KC: Tensor  # uniform number that chooses the predicted token
    noise_KC: Tensor  # tokens of the positions that are not accepted
    open_KC: Tensor  # positions that may change; the others are pinned

    def part(self, canvas_R: Tensor) -> Self:
        """Return the steps of some canvases, given by their indices."""
        return replace(self, **{name: value[canvas_R] for name, value in vars(self).items()})


@dataclass(frozen=True)
class Corruption:
    t_K: Tensor  # share of tokens replaced
    noisy_KC: Tensor
    conditioned: Ints  # examples with self-conditioning: they get a first pass
    next_step: NextStep | None = None  # after the first pass; None: the canvas stays as it is
    # Of recorded canvases; None: there are none, so there is one first pass, over the same canvases.
    recorded_K: Tensor | None = None
    before_DKC: Tensor | None = None  # the canvases of the first passes, one after another
    temperature_DK: Tensor | None = None  # of their predictions
    steps_K: Ints | None = None  # first passes of each canvas

    def canvases_before(self, index: int) -> Tensor:
        """Return the canvases of the first pass with this index, or of the last one if there are fewer."""
        if self.before_DKC is None:
            return self.noisy_KC
        return self.before_DKC[min(index, len(self.before_DKC) - 1)]

    def temperatures(self, index: int) -> Tensor | None:
        """Return the temperature of each canvas's predictions in a first pass. None: 1 for all."""
        if self.temperature_DK is None:
            return None
        return self.temperature_DK[min(index, len(self.temperature_DK) - 1)]


def canvases(example: Example, length: int, eos: int) -> list[tuple[int, list[int]]]:
    """Return start and tokens of every canvas of the responses. The last one of each is filled with eos targets."""
    starts_and_tokens = []
    for span_start, span_end in example.spans:
        for start in range(span_start, span_end, length):
            tokens = list(example.tokens[start : min(start + length, span_end)])
            filling = [eos] * (length - len(tokens))
            starts_and_tokens.append((start, tokens + filling))
    return starts_and_tokens


def collate(
    examples: Sequence[Example], *, canvas_length: int, per_example: int | None, eos: int, pad: int, learn_text: str,
    seed: int, first: int, multiple: int = 1, draws: int = 1, pack: bool = False, conditioning: float = 0.0,
    bidirectional_images: bool = False,
) -> Batch:  # fmt: skip
    """Return a batch with `per_example` canvases per example, drawn uniformly without repetition, or all (None).

    The encoder is trained on the text that `learn_text` selects: "all", "response" or "none". Text that is not a target
    and that no canvas attends to is left out. `first` is the index of the first example in the run. Every canvas is
    repeated `draws` times, to be shown at that many noise levels. Every text is padded to the longest of the batch,
    rounded up to a `multiple`. With `pack`, texts follow each other without padding; only their sum is rounded up.
    A share `conditioning` of the examples gets self-conditioning: the batch has a later step of their recorded runs,
    and the first step of the other runs. The soft tokens of an image attend to each other if images are bidirectional.
    """
    canvases_B = []  # starts and tokens of the chosen canvases of each example
    texts = []
    for offset, example in enumerate(examples):
        candidates = canvases(example, canvas_length, eos)
        if per_example is not None and per_example < len(candidates):
            order = _uniform(seed, first + offset, 0, len(candidates)).argsort().tolist()
            candidates = [candidates[i] for i in sorted(order[:per_example])]
        canvases_B.append(candidates * draws)
        last_start, _ = candidates[-1]
        texts.append(example.tokens[:last_start] if learn_text == "none" else example.tokens)
    layout = Layout(
        width_B=_widths(np.array([len(text) for text in texts]), multiple, pack),
        owner_K=np.repeat(np.arange(len(examples)), [len(of_example) for of_example in canvases_B]),
        at_K=np.array([start for of_example in canvases_B for start, _ in of_example]),
        canvas_length=canvas_length,
    )
    images, image_N2 = _images(examples, texts, layout.begin_B)
    if bidirectional_images:
        layout = replace(layout, image_N2=image_N2)
    image_R = np.concatenate([np.arange(start, end) for start, end in image_N2] or [np.zeros(0, dtype=np.int64)])
    text_S = np.full(layout.text, pad)
    valid_S = np.zeros(layout.text, dtype=bool)
    targets = []
    for begin, example, text in zip(layout.begin_B, examples, texts, strict=True):
        text_S[begin : begin + len(text)] = text
        valid_S[begin : begin + len(text)] = True
        spans = {"all": ((1, len(text)),), "response": example.spans, "none": ()}[learn_text]
        # No token precedes the first, so it cannot be predicted.
        targets += [np.arange(begin + max(start, 1), begin + end) for start, end in spans]
    target_R = np.concatenate(targets) if targets else np.zeros(0, dtype=np.int64)
    if len(image_R):
        target_R = np.setdiff1d(target_R, image_R)  # the model does not predict soft tokens
    clean_KC = np.array([tokens for of_example in canvases_B for _, tokens in of_example])
    place_K = np.concatenate([np.arange(len(of_example)) for of_example in canvases_B])
    optional_fields = _recorded(examples, canvas_length, conditioning, seed, first)
    if len(image_R):
        optional_fields["images"] = tuple(
            BatchImage(digest=image.digest, rows=image.rows, columns=image.columns) for image in images
        )
        optional_fields["pixels_PI"] = torch.from_numpy(np.concatenate([image.patches for image in images]))
        optional_fields["image_R"] = torch.from_numpy(image_R)
    return Batch(
        text_S=torch.from_numpy(text_S),
        valid_S=torch.from_numpy(valid_S),
        owner_S=torch.from_numpy(layout.owner_S),
        target_R=torch.from_numpy(target_R),
        clean_KC=torch.from_numpy(clean_KC),
        owner_K=torch.from_numpy(layout.owner_K),
        place_K=torch.from_numpy(place_K),
        layout=layout,
        **optional_fields,
    )


def _images(examples: Sequence[Example], texts: Sequence[Sequence[int]], begin_B: Ints) -> tuple[list[Image], Ints]:
    """Return the images in the text of a batch, and start and end [N, 2] of the soft tokens of each."""
    images: list[Image] = []
    ends: list[tuple[int, int]] = []
    for begin, example, text in zip(begin_B, examples, texts, strict=True):
        for start, image in zip(example.starts, example.images, strict=True):
            if start < len(text):
                images.append(image)
                ends.append((begin + start, begin + start + image.tokens))
    return images, np.array(ends, dtype=np.int64).reshape(-1, 2)


def _recorded(
    examples: Sequence[Example], canvas_length: int, conditioning: float, seed: int, first: int
) -> dict[str, Any]:
    """Return the recorded canvases of a batch, where every example has one canvas, with or without a trajectory."""
    if not any(example.trajectory for example in examples):
        return {}
    size = len(examples)
    later = set(conditioned_examples(conditioning, seed, first, size).tolist())
    picked = {
        i: example.trajectory.pick(i in later, float(_uniform(seed, first + i, 7, 1)))
        for i, example in enumerate(examples)
        if example.trajectory is not None
    }
    steps_K = np.ones(size, dtype=np.int64)  # of an ordinary canvas, too
    steps_K[list(picked)] = [len(before.canvas_NC) for _, before in picked.values()]
    depth = max(1, int(steps_K.max()))
    recorded_K = np.zeros(size, dtype=bool)
    shown_KC = np.zeros((size, canvas_length), dtype=np.int64)
    before_DKC = np.zeros((depth, size, canvas_length), dtype=np.int64)
    temperature_DK = np.ones((depth, size), dtype=np.float32)
    for i, (canvas_C, before) in picked.items():
        recorded_K[i] = True
        shown_KC[i] = canvas_C
        before_DKC[: steps_K[i], i] = before.canvas_NC
        temperature_DK[: steps_K[i], i] = before.temperature_N
    return {
        "recorded_K": torch.from_numpy(recorded_K),
        "shown_KC": torch.from_numpy(shown_KC),
        "before_DKC": torch.from_numpy(before_DKC),
        "temperature_DK": torch.from_numpy(temperature_DK),
        "steps_K": steps_K,
    }


def _widths(lengths_B: Ints, multiple: int, pack: bool) -> Ints:
    """Return the tokens of each text with its padding."""
    if not pack:
        return np.full_like(lengths_B, -(-lengths_B.max() // multiple) * multiple)
    padding = -lengths_B.sum() % multiple
    return np.concatenate([lengths_B[:-1], lengths_B[-1:] + padding])


def corrupt(
    batch: Batch, vocab_size: int, *, conditioning: float, seed: int, first: int, pinned: float = 0.0,
    unrolled: float = 0.0,
) -> Corruption:  # fmt: skip
    """Replace each token by a uniform one with probability t, one t per canvas: a function of seed and example.

    Each t is uniform, and those of an example's canvases are spread evenly. A share `pinned` of the examples has noise
    in one random section of each canvas only; the rest is unchanged, as in an edit of part of a text. A share
    `unrolled` of the examples with self-conditioning takes a step of a run after the first pass: see `NextStep`.
    """
    draws = _CanvasDraws(batch, seed, first)
    level_K = (draws.of_examples(1, 1)[:, 0][batch.owner_K] + GOLDEN * batch.place_K) % 1
    t_K = MIN_NOISE + (1 - MIN_NOISE) * level_K
    replaced_KC = draws.uniform(2) < t_K[:, None]
    open_KC = torch.ones_like(replaced_KC)
    if pinned:
        open_KC = _open_positions(draws, pinned)
        replaced_KC &= open_KC
    noisy_KC = torch.where(replaced_KC, draws.tokens(3, vocab_size), batch.clean_KC)
    conditioned = conditioned_examples(conditioning, seed, first, batch.size)
    if batch.recorded_K is None or batch.shown_KC is None or batch.before_DKC is None:
        next_step = _next_step(draws, unrolled, open_KC, vocab_size) if unrolled else None
        return Corruption(t_K=t_K, noisy_KC=noisy_KC, conditioned=conditioned, next_step=next_step)
    recorded_K1 = batch.recorded_K[:, None]
    return Corruption(
        t_K=t_K,
        noisy_KC=torch.where(recorded_K1, batch.shown_KC, noisy_KC),
        conditioned=conditioned,
        recorded_K=batch.recorded_K,
        before_DKC=torch.where(recorded_K1, batch.before_DKC, noisy_KC),
        temperature_DK=batch.temperature_DK,
        steps_K=batch.steps_K,
    )


class _CanvasDraws:
    """Random numbers for the examples and canvases of a batch. Each `use` has its own stream."""

    def __init__(self, batch: Batch, seed: int, first: int) -> None:
        self.owner_K = batch.owner_K
        self.place_K = batch.place_K
        self.canvas_length = batch.clean_KC.shape[1]
        self.device = batch.clean_KC.device
        self._seed = seed
        self._example_B = torch.arange(first, first + batch.size, device=self.device)
        most_canvases = int(np.bincount(batch.layout.owner_K).max())
        self._tokens_per_example = most_canvases * self.canvas_length

    def of_examples(self, use: int, count: int) -> Tensor:
        """Return uniform numbers [B, count]."""
        return self._stream(use).uniform(count)

    def uniform(self, use: int) -> Tensor:
        """Return a uniform number for each position of each canvas [K, C]."""
        return self._of_canvases(self._stream(use).uniform(self._tokens_per_example))

    def tokens(self, use: int, vocab_size: int) -> Tensor:
        """Return a uniform token for each position of each canvas [K, C]."""
        return self._of_canvases(self._stream(use).tokens(self._tokens_per_example, vocab_size))

    def _stream(self, use: int) -> HashDraws:
        return HashSource().at(self._seed, self._example_B, use, self.device)

    def _of_canvases(self, drawn_BX: Tensor) -> Tensor:
        return drawn_BX.unflatten(1, (-1, self.canvas_length))[self.owner_K, self.place_K]


def _open_positions(draws: _CanvasDraws, pinned: float) -> Tensor:
    """Return the positions [K, C] that may get noise: one section in a share `pinned` of the examples, else all."""
    whole_B1 = draws.of_examples(4, 1) >= pinned
    end_B2 = (draws.of_examples(5, 2).sort(-1).values * draws.canvas_length).floor()
    position_C = torch.arange(draws.canvas_length, device=draws.device)
    section_BC = (position_C >= end_B2[:, :1]) & (position_C <= end_B2[:, 1:])
    return (section_BC | whole_B1)[draws.owner_K]


def _next_step(draws: _CanvasDraws, unrolled: float, open_KC: Tensor, vocab_size: int) -> NextStep:
    """Draw a step of a run for a share `unrolled` of the examples, with entropy bounds spread evenly in the log."""
    log_low, log_high = (math.log(bound) for bound in BOUNDS)
    return NextStep(
        taken_K=draws.of_examples(8, 1)[:, 0][draws.owner_K] < unrolled,
        bound_K1=(log_low + (log_high - log_low) * draws.uniform(9)[:, :1]).exp(),
        drawn_KC=draws.uniform(10),
        noise_KC=draws.tokens(11, vocab_size),
        open_KC=open_KC,
    )


def conditioned_examples(share: float, seed: int, first: int, count: int) -> Ints:
    """Return the offsets of the examples `first`, `first + 1`, … that get a first pass, out of `count`.

    Of every n consecutive examples, k are drawn, where k / n is the share. So batches of a multiple of n examples have
    one shape, and the choice does not follow settings that take turns by batch, such as the canvas length.
    """
    ratio = Fraction(share).limit_denominator(100)
    k, n = ratio.numerator, ratio.denominator
    block_B, place_B = np.divmod(np.arange(first, first + count), n)
    draws = HashSource().at(seed, torch.from_numpy(block_B), 6, torch.device("cpu"))
    drawn_Bn = draws.uniform(n).argsort(-1).numpy()[:, :k]
    return np.flatnonzero((drawn_Bn == place_B[:, None]).any(-1))


def _uniform(seed: int, example: int, use: int, count: int) -> Tensor:
    return HashSource().at(seed, example, use, torch.device("cpu")).uniform(count)
