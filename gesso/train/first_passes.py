"""First passes: predictions without gradient that the last pass over a canvas reads.

A denoising step reads two things from the step before: its prediction, as the expected embedding of every position
(self-conditioning), and the canvas that the sampler made from it. A share of the training examples is prepared in the
same way: it gets one pass without gradient over its noisy canvas. A recorded canvas, which comes from a run
of the model, gets one for each step before it, and each of these passes reads the prediction of the one before.

B examples, S text of all examples, K canvases of all examples, C canvas, H hidden, V vocabulary, R some canvases or the
rows of a chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gesso.diffusion.hash import send
from gesso.diffusion.moment import lowest_within
from gesso.model.transformer import DiffusionGemma
from gesso.train.batch import Batch, Corruption, NextStep
from gesso.train.head import chunk_rows
from gesso.train.layout import Ints, Layout
from gesso.train.processes import in_any_process


class Network(Protocol):
    """The operations of the objective on which first passes rest."""

    @property
    def model(self) -> DiffusionGemma: ...

    def embed(self, ids: Tensor) -> Tensor: ...

    def hidden(
        self, layout: Layout, text_SH: Tensor, embedded_KCH: Tensor, soft_KCH: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]: ...

    @property
    def predict(self) -> Callable[[Tensor, float, bool], Tensor]: ...

    def expected_embedding(self, hidden: Tensor, temperature: float | Tensor = 1.0, fixed: bool = False) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class FirstPass:
    """The result of a pass without gradient over R canvases."""

    canvas_R: Tensor  # their indices in the batch
    before_RC: Tensor  # their tokens
    hidden_RCH: Tensor
    expected_RCH: Tensor  # mean embeddings under the predictions


def first_passes(network: Network, batch: Batch, text_SH: Tensor, corruption: Corruption) -> tuple[Tensor, Tensor]:
    """Return the self-conditioning [K, C, H] and the tokens [K, C] of all canvases for the last pass.

    Examples without first passes keep the tokens of the corruption, and their self-conditioning is exactly zero. Zero
    logits would be wrong: their expected embedding is the mean of all embeddings.
    """
    soft_KCH = torch.zeros_like(network.embed(corruption.noisy_KC))
    shown_KC = corruption.noisy_KC
    # A recorded example has one canvas, so the steps of canvases are those of examples.
    passes_B = np.ones(batch.size) if corruption.steps_K is None else corruption.steps_K
    examples = corruption.conditioned
    number = 0
    while in_any_process(len(examples) > 0, soft_KCH.device):
        if len(examples):
            result = _first_pass(network, batch, examples, number, text_SH, soft_KCH, corruption)
            soft_KCH = soft_KCH.index_put((result.canvas_R,), result.expected_RCH)
            if corruption.next_step is not None:
                step = corruption.next_step.part(result.canvas_R)
                next_RC = next_canvas(network, result.hidden_RCH, result.before_RC, step)
                shown_KC = shown_KC.index_put((result.canvas_R,), next_RC)
        else:
            soft_KCH = soft_KCH + _zero_of_idle_pass(network, batch, number, text_SH, soft_KCH, corruption)
        number += 1
        examples = examples[passes_B[examples] > number]
    return soft_KCH, shown_KC


def _first_pass(
    network: Network,
    batch: Batch,
    examples: Ints,
    number: int,
    text_SH: Tensor,
    soft_KCH: Tensor,
    corruption: Corruption,
) -> FirstPass:
    """Run the canvases of some examples through the network, conditioned by the pass before."""
    layout, text_indices, canvas_indices = batch.layout.part(examples)
    text_R = send(torch.from_numpy(text_indices), text_SH.device)
    canvas_R = send(torch.from_numpy(canvas_indices), text_SH.device)
    before_RC = corruption.canvases_before(number)[canvas_R]
    with torch.no_grad():
        _, hidden_RCH, _ = network.hidden(layout, text_SH[text_R], network.embed(before_RC), soft_KCH[canvas_R])
    temperature: float | Tensor = 1.0
    temperature_K = corruption.temperatures(number)
    if temperature_K is not None:
        temperature = temperature_K[canvas_R][:, None].expand(hidden_RCH.shape[:2])
    # As in the reference, gradients flow into the averaged embeddings, but not into the prediction.
    expected_RCH = network.expected_embedding(hidden_RCH, temperature, fixed=True).to(soft_KCH.dtype)
    return FirstPass(canvas_R=canvas_R, before_RC=before_RC, hidden_RCH=hidden_RCH, expected_RCH=expected_RCH)


def _zero_of_idle_pass(
    network: Network, batch: Batch, number: int, text_SH: Tensor, soft_KCH: Tensor, corruption: Corruption
) -> Tensor:
    """Run any example and return a zero that depends on the result.

    Sharded weights are gathered layer by layer, in all processes at once. So a process that needs no pass takes part in
    those of the others, in the backward pass too.
    """
    any_example = np.zeros(1, dtype=np.int64)
    idle = _first_pass(network, batch, any_example, number, text_SH, soft_KCH, corruption)
    return 0 * idle.expected_RCH.sum()


@torch.no_grad()
def next_canvas(network: Network, hidden_RCH: Tensor, canvas_RC: Tensor, step: NextStep) -> Tensor:
    """Return the canvas after one step of a run, for the canvases that take it; the others stay as they are.

    Random noise never shows a model its own mistakes, such as a token that is written twice and moves the rest of the
    text by one position. A run has them, and the model has to learn to correct them (SUNDAE, arXiv 2112.06749).
    """
    tokens = []
    entropies = []
    rows = chunk_rows(network.model.head)
    chunks = zip(hidden_RCH.flatten(0, 1).split(rows), step.drawn_KC.flatten().split(rows), strict=True)
    for hidden_RH, drawn_R in chunks:
        token_R, entropy_R = _draw(network, hidden_RH, drawn_R)
        tokens.append(token_R)
        entropies.append(entropy_R)
    token_RC = torch.cat(tokens).view(canvas_RC.shape)
    entropy_RC = torch.cat(entropies).view(canvas_RC.shape)

    # The entropy-bound sampler: the most certain positions take their tokens, all others new noise.
    accepted_RC = lowest_within(entropy_RC, step.bound_K1)
    moved_RC = torch.where(accepted_RC, token_RC, step.noise_KC)
    return torch.where(step.taken_K[:, None] & step.open_KC, moved_RC, canvas_RC)


def _draw(network: Network, hidden_RH: Tensor, drawn_R: Tensor) -> tuple[Tensor, Tensor]:
    """Return a token drawn from each prediction, and the entropy of the prediction."""
    probability_RV = network.predict(hidden_RH, 1.0, True).float()
    cumulative_RV = probability_RV.cumsum(-1)
    token_R = torch.searchsorted(cumulative_RV, drawn_R[:, None] * cumulative_RV[:, -1:]).squeeze(-1)
    entropy_R = torch.special.entr(probability_RV).sum(-1)
    return token_R.clamp(max=cumulative_RV.shape[-1] - 1), entropy_R
