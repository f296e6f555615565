"""Examples as tensors: the text, the canvases of its responses, and the noise on these canvases.

B examples, S text, K canvases per example, C canvas.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gesso.diffusion.hash import send
from gesso.diffusion.noise import HashDraws, HashSource
from gesso.train.data import Example

MIN_NOISE = 1e-3  # smallest share of replaced tokens
GOLDEN = 0.6180339887  # the fractional parts of its multiples are evenly spread for any count


@dataclass(frozen=True)
class Batch:
    text_BS: Tensor
    valid_BS: Tensor  # text, not padding
    target_BS: Tensor  # tokens that the encoder is trained to predict
    clean_BKC: Tensor  # canvases without noise, filled up with eos
    start_BK: Tensor  # position of a canvas in the text
    present_BK: Tensor  # canvas, not padding
    common_start: int | None  # start of all canvases, if they share one

    def to(self, device: torch.device) -> Self:
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Copy to pinned memory, for asynchronous transfers; torch's DataLoader calls this."""
        return self._each(Tensor.pin_memory)

    def rows(self, rows_R: Tensor) -> Self:
        return self._each(lambda tensor: tensor[rows_R])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        tensors = [item.name for item in fields(self) if item.name != "common_start"]
        return replace(self, **{name: change(getattr(self, name)) for name in tensors})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Corruption:
    t_BK: Tensor  # share of tokens replaced
    noisy_BKC: Tensor
    conditioned_R: Tensor  # rows with self-conditioning: they get a first pass


def canvases(example: Example, length: int, eos: int) -> list[tuple[int, list[int]]]:
    """Return start and tokens of every canvas of the responses. The last one of each is filled with eos targets."""
    found = []
    for start, end in example.spans:
        for at in range(start, end, length):
            tokens = list(example.tokens[at : min(at + length, end)])
            found.append((at, tokens + [eos] * (length - len(tokens))))
    return found


def collate(
    examples: Sequence[Example], *, canvas_length: int, per_example: int | None, eos: int, pad: int, learn_text: str,
    seed: int, first: int, multiple: int = 1, draws: int = 1,
) -> Batch:  # fmt: skip
    """Return a batch with `per_example` canvases per example, drawn uniformly without repetition, or all (None).

    The encoder is trained on the text that `learn_text` selects: "all", "response" or "none". Text that is no target
    and that no canvas attends to is left out. `first` is the number of the first example in the run. The text is padded
    to a `multiple`. Every canvas is repeated `draws` times, to be shown at that many noise levels.
    """
    chosen, texts = [], []
    for offset, example in enumerate(examples):
        found = canvases(example, canvas_length, eos)
        if per_example is not None and per_example < len(found):
            order = _uniform(seed, first + offset, 0, len(found)).argsort().tolist()
            found = [found[i] for i in sorted(order[:per_example])]
        chosen.append(found * draws)
        texts.append(example.tokens[: found[-1][0]] if learn_text == "none" else example.tokens)
    rows, most = len(examples), max(map(len, chosen))
    width = -(-max(map(len, texts)) // multiple) * multiple
    text_BS = np.full((rows, width), pad)
    valid_BS, target_BS = (np.zeros((rows, width), dtype=bool) for _ in range(2))
    clean_BKC = np.full((rows, most, canvas_length), pad)
    start_BK = np.zeros((rows, most), dtype=np.int64)
    present_BK = np.zeros((rows, most), dtype=bool)
    for b, (example, read, found) in enumerate(zip(examples, texts, chosen, strict=True)):
        text_BS[b, : len(read)] = read
        valid_BS[b, : len(read)] = True
        targets = {"all": [(1, len(read))], "response": example.spans, "none": []}[learn_text]
        for begin, end in targets:
            target_BS[b, max(begin, 1) : end] = True  # no token precedes the first, so it cannot be predicted
        for k, (at, tokens) in enumerate(found):
            clean_BKC[b, k], start_BK[b, k], present_BK[b, k] = tokens, at, True
    text, valid, target, clean, start, present = map(
        torch.from_numpy, (text_BS, valid_BS, target_BS, clean_BKC, start_BK, present_BK)
    )
    common_start = int(start_BK[0, 0]) if present_BK.all() and (start_BK == start_BK[0, 0]).all() else None
    return Batch(text, valid, target, clean, start, present, common_start)


def corrupt(
    clean_BKC: Tensor, vocab_size: int, *, conditioning: float, seed: int, first: int, pinned: float = 0.0
) -> Corruption:
    """Replace each token by a uniform one with probability t, one t per canvas: a function of seed and example.

    Each t is uniform, and those of an example's canvases are spread evenly. A share `pinned` of the examples has noise
    in one random section of each canvas only; the rest is unchanged, as in an edit of part of a text.
    """
    rows, shape, device = len(clean_BKC), clean_BKC.shape, clean_BKC.device
    number_B = torch.arange(first, first + rows, device=device)

    def draws(use: int) -> HashDraws:
        return HashSource().at(seed, number_B, use, device)

    level_BK = (draws(1).uniform(1) + GOLDEN * torch.arange(shape[1], device=device)) % 1
    t_BK = MIN_NOISE + (1 - MIN_NOISE) * level_BK
    replaced_BKC = draws(2).uniform(shape[1:].numel()).view(shape) < t_BK[..., None]
    if pinned:
        whole_B1, end_B2 = draws(4).uniform(1) >= pinned, (draws(5).uniform(2).sort(-1).values * shape[-1]).floor()
        position_C = torch.arange(shape[-1], device=device)
        open_BC = (position_C >= end_B2[:, :1]) & (position_C <= end_B2[:, 1:])
        replaced_BKC &= (open_BC | whole_B1)[:, None]
    noisy_BKC = torch.where(replaced_BKC, draws(3).tokens(shape[1:].numel(), vocab_size).view(shape), clean_BKC)
    conditioned_R = send(torch.from_numpy(conditioned_examples(conditioning, seed, first, rows)), device)
    return Corruption(t_BK, noisy_BKC, conditioned_R)


def conditioned_examples(share: float, seed: int, first: int, count: int) -> npt.NDArray[np.int64]:
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
