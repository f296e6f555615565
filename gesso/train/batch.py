"""Examples as tensors: the text, and the canvases of its responses that are to be denoised.

B examples, S text, K canvases an example, C canvas.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from gesso.diffusion.noise import HashDraws, HashSource
from gesso.train.data import Example

T_LEAST = 1e-3  # the least noise an example gets


@dataclass(frozen=True)
class Batch:
    text_BS: Tensor
    valid_BS: Tensor  # text, not padding
    target_BS: Tensor  # what the encoder learns to predict
    clean_BKC: Tensor  # canvases as they should be, filled up with eos
    start_BK: Tensor  # position of a canvas in the text
    present_BK: Tensor  # not padding

    def to(self, device: torch.device) -> Self:
        return type(self)(*(getattr(self, item.name).to(device) for item in fields(self)))


@dataclass(frozen=True)
class Corruption:
    t_B: Tensor  # share of tokens replaced
    noisy_BKC: Tensor
    conditioned_B: Tensor  # gets a first pass whose prediction conditions the second

    def to(self, device: torch.device) -> Self:
        return type(self)(self.t_B.to(device), self.noisy_BKC.to(device), self.conditioned_B.to(device))


def canvases(example: Example, length: int, eos: int) -> list[tuple[int, list[int]]]:
    """Start and tokens of every canvas of the responses. The last of each is filled with eos, which is learnt too."""
    found = []
    for start, end in example.spans:
        for at in range(start, end, length):
            tokens = list(example.tokens[at : min(at + length, end)])
            found.append((at, tokens + [eos] * (length - len(tokens))))
    return found


def collate(
    examples: Sequence[Example], *, canvas_length: int, per_example: int | None, eos: int, pad: int, whole_text: bool,
    seed: int, first: int,
) -> Batch:  # fmt: skip
    """`per_example` canvases of each, uniformly chosen without repetition, or all (None).

    `whole_text` has the encoder learn the prompts too. `first` is the number of the first example in the run.
    """
    chosen = []
    for offset, example in enumerate(examples):
        found = canvases(example, canvas_length, eos)
        if per_example is not None and per_example < len(found):
            order = _uniform(seed, first + offset, 0, len(found)).argsort().tolist()
            found = [found[i] for i in sorted(order[:per_example])]
        chosen.append(found)
    rows, width, most = len(examples), max(len(e.tokens) for e in examples), max(map(len, chosen))
    text_BS = torch.full((rows, width), pad)
    valid_BS, target_BS = (torch.zeros(rows, width, dtype=torch.bool) for _ in range(2))
    clean_BKC = torch.full((rows, most, canvas_length), pad)
    start_BK = torch.zeros(rows, most, dtype=torch.long)
    present_BK = torch.zeros(rows, most, dtype=torch.bool)
    for b, (example, found) in enumerate(zip(examples, chosen, strict=True)):
        text_BS[b, : len(example.tokens)] = torch.tensor(example.tokens)
        valid_BS[b, : len(example.tokens)] = True
        for start, end in [(1, len(example.tokens))] if whole_text else example.spans:
            target_BS[b, max(start, 1) : end] = True  # the first token has nothing before it to be predicted from
        for k, (start, tokens) in enumerate(found):
            clean_BKC[b, k], start_BK[b, k], present_BK[b, k] = torch.tensor(tokens), start, True
    return Batch(text_BS, valid_BS, target_BS, clean_BKC, start_BK, present_BK)


def corrupt(clean_BKC: Tensor, vocab_size: int, *, conditioning: float, seed: int, first: int) -> Corruption:
    """Each token is replaced by a uniform one with probability t, one t an example. A function of seed and example."""
    rows, shape, device = len(clean_BKC), clean_BKC.shape[1:], clean_BKC.device
    size = shape.numel()
    t_B, conditioned_B = torch.empty(rows), torch.empty(rows, dtype=torch.bool)
    noise, replaced = [], []
    for b in range(rows):
        u_time, u_condition = _uniform(seed, first + b, 1, 2).tolist()
        t_B[b] = T_LEAST + (1 - T_LEAST) * u_time
        conditioned_B[b] = u_condition < conditioning
        replaced.append((_uniform(seed, first + b, 2, size) < t_B[b]).view(shape))
        noise.append(_draws(seed, first + b, 3).tokens(size, vocab_size).view(shape))
    noisy_BKC = torch.where(torch.stack(replaced).to(device), torch.stack(noise).to(device), clean_BKC)
    return Corruption(t_B.to(device), noisy_BKC, conditioned_B.to(device))


def _draws(seed: int, example: int, use: int) -> HashDraws:
    return HashSource().at(seed, example, use, torch.device("cpu"))


def _uniform(seed: int, example: int, use: int, count: int) -> Tensor:
    return _draws(seed, example, use).uniform(count)
