"""The training objective: denoise a canvas, and predict the next token.

The decoder loss is plain cross-entropy to the clean token over *all* positions of the chosen canvases, corrupted or
not, without a 1/t weight. The encoder loss is next-token cross-entropy over the responses. Both are means per example.
A canvas attends to the clean text before it, through the layers' keys and values, and to itself. The texts and canvases
of all examples run through the network as one sequence (`layout.py`).

B examples, S text of all examples, K canvases of all examples, C canvas, T = S + K·C, H hidden, V vocabulary, E
experts, R rows of a chunk, or some canvases or tokens.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gesso.diffusion.hash import send
from gesso.diffusion.moment import lowest_within
from gesso.errors import InputError
from gesso.model.attention import Attend
from gesso.model.experts import chosen
from gesso.model.transformer import DiffusionGemma
from gesso.train.attention import FUSED_DIM, block_attention, compiled_attention, tile_mask
from gesso.train.batch import Batch, Corruption, NextStep
from gesso.train.blocks import attention_groups
from gesso.train.head import chunk_loss, chunk_rows, token_losses
from gesso.train.layout import Ints, Layout
from gesso.train.processes import in_any_process
from gesso.train.recipe import ObjectiveSettings
from gesso.train.seeing import Seeing


@dataclass(frozen=True)
class Losses:
    """The losses of each example, their weighted sum, and the load balance of the batch."""

    total_B: Tensor
    decoder_B: Tensor
    encoder_B: Tensor
    balance: Tensor


@dataclass(frozen=True, kw_only=True)
class Round:
    """A pass without gradient over R canvases, which conditions the next pass over them."""

    canvas_R: Tensor  # their indices in the batch
    before_RC: Tensor  # their tokens
    hidden_RCH: Tensor
    expected_RCH: Tensor  # mean embeddings under the predictions


class Objective(nn.Module):
    """The loss as a module, so that sharding and compilation apply to one forward."""

    def __init__(
        self,
        model: DiffusionGemma,
        settings: ObjectiveSettings,
        checkpoint_activations: bool = False,
        certainty: float = 0.0,
    ) -> None:
        super().__init__()
        if not model.is_tied:
            raise InputError("only a model whose encoder and decoder share their weights can be trained")
        self.model = model
        self.settings = settings
        self.checkpoint_activations = checkpoint_activations
        self.certainty = certainty  # weight of the entropy of right predictions on recorded canvases
        self.flex = False  # use FlexAttention where it can run
        self.scale = model.embed_scale
        self.seeing = Seeing(model, recompute=checkpoint_activations)
        # These four are replaced by compiled functions in `compile_parts`.
        self.chunk_loss = chunk_loss
        self.balance_of = balance_loss
        self.predict = self._predict
        self.mean_embedding = model.expected_embedding

    def forward(self, batch: Batch, corruption: Corruption) -> Losses:
        prompt_SH = self.embed_text(batch)
        soft_KCH, shown_KC = self._condition(batch, prompt_SH, corruption)
        noisy_KCH = self.embed(shown_KC)
        text_SH, canvas_KCH, scores = self.hidden(batch.layout, prompt_SH, noisy_KCH, soft_KCH)
        decoder_B = self._decoder_loss(batch, corruption, canvas_KCH)
        encoder_B = self._encoder_loss(batch, text_SH)
        balance = self._balance(scores, batch) if self.settings.balance_weight else decoder_B.new_zeros(())
        total_B = decoder_B + self.settings.encoder_weight * encoder_B + self.settings.balance_weight * balance
        return Losses(total_B=total_B, decoder_B=decoder_B, encoder_B=encoder_B, balance=balance)

    def compile_parts(self, backend: str | Callable[..., Any] = "inductor") -> None:
        """Compile by layer: layers share their code, so compilation takes seconds per batch shape."""
        self.flex = self.model.device.type == "cuda"
        # Sliding and global layers, with and without gradient, for each batch shape.
        torch._dynamo.config.recompile_limit = 64
        warnings.filterwarnings("ignore", message=r"\s*Online softmax is disabled")  # users cannot act on it
        for part in (*self.model.decoder.layers, self.model.decoder.norm):
            part.compile(dynamic=False, backend=backend)
        self.chunk_loss = torch.compile(chunk_loss, backend=backend)
        self.balance_of = torch.compile(balance_loss, backend=backend)
        # Two graphs: one would unpack the table of a quantized model once for both, and keep all of it meanwhile.
        self.predict = torch.compile(self.predict, backend=backend)
        self.mean_embedding = torch.compile(self.mean_embedding, backend=backend)

    # --- one pass over text and canvases ------------------------------------------------------------------------

    def embed(self, ids: Tensor) -> Tensor:
        embedded = self.model.decoder.embed_tokens(ids) * self.scale
        kind = ids.device.type
        # Half the memory traffic is the residual stream, so it takes the narrow dtype too.
        return embedded.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else embedded

    def embed_text(self, batch: Batch) -> Tensor:
        """Return the embeddings [S, H] of the text of a batch, with those of its images in their places."""
        text_SH = self.embed(batch.text_S)
        image_RH = self.seeing.soft_tokens(batch)
        if image_RH is not None and batch.image_R is not None:
            return text_SH.index_put((batch.image_R,), image_RH.to(text_SH.dtype))
        zero = self.seeing.zero()
        return text_SH if zero is None else text_SH + zero.to(text_SH.dtype)

    def hidden(
        self, layout: Layout, text_SH: Tensor, embedded_KCH: Tensor, soft_KCH: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Run text and canvases through the network, as the sequence that `layout` describes.

        `text_SH` are the embeddings of the text, `embedded_KCH` those of the canvases, `soft_KCH` their
        self-conditioning. Return the hidden states of the text [S, H] and of the canvases [K, C, H], and the router
        scores by layer.
        """
        model, device = self.model, text_SH.device
        canvas_RH = model.self_conditioning.condition(embedded_KCH.flatten(0, 1), soft_KCH.flatten(0, 1))
        x_TH = torch.cat([text_SH, canvas_RH])
        position_T = send(torch.from_numpy(layout.position_T), device)
        encoder_L1, decoder_L1 = (torch.stack(tuple(s.layer_scalars)) for s in (model.encoder, model.decoder))
        is_text_T = torch.arange(len(x_TH), device=device) < len(text_SH)
        scalars_LT1 = torch.where(is_text_T, encoder_L1, decoder_L1).to(x_TH.dtype)[..., None]
        recompute = self.checkpoint_activations and torch.is_grad_enabled()
        attends = self._attends(layout, device)
        out_TH, scores = model.decoder(x_TH, position_T, attends, scalars=list(scalars_LT1), recompute=recompute)
        return out_TH[: len(text_SH)], out_TH[len(text_SH) :].view(embedded_KCH.shape), scores

    def _attends(self, layout: Layout, device: torch.device) -> list[Attend]:
        """Return the attention function of every layer."""
        config = self.model.config
        attend_by_kind: dict[tuple[int | None, bool], Attend] = {}  # by window, and whether FlexAttention runs it
        kinds = []
        for shape in config.layers:
            # A window wider than every text has no effect.
            slides = shape.sliding and config.sliding_window <= layout.width_B.max()
            kinds.append((config.sliding_window if slides else None, self.flex and shape.head_dim <= FUSED_DIM))
        for window, flex in set(kinds):
            if flex:
                attend = partial(compiled_attention, blocks=tile_mask(layout, window, device))
            else:
                attend = partial(block_attention, groups=attention_groups(layout, window, device))
            attend_by_kind[window, flex] = attend
        return [attend_by_kind[kind] for kind in kinds]

    def _condition(self, batch: Batch, text_SH: Tensor, corruption: Corruption) -> tuple[Tensor, Tensor]:
        """Return the soft embeddings of passes without gradient, and the canvases to show in the last pass.

        The soft embeddings of the other examples are exact zeros, and their canvases those of the corruption.

        Zero logits would be wrong: their soft embedding is the mean of all embeddings. A recorded canvas gets one round
        for every step before it. As in the run, each round is conditioned by its predecessor.
        """
        soft_KCH = torch.zeros_like(self.embed(corruption.noisy_KC))
        shown_KC = corruption.noisy_KC
        chosen = corruption.conditioned
        # A recorded example has one canvas, so the steps of canvases are those of examples.
        rounds_B = np.ones(batch.size) if corruption.steps_K is None else corruption.steps_K
        done = 0  # rounds
        while in_any_process(len(chosen) > 0, soft_KCH.device):
            if len(chosen):
                result = self._round(batch, chosen, done, text_SH, soft_KCH, corruption)
                soft_KCH = soft_KCH.index_put((result.canvas_R,), result.expected_RCH)
                if corruption.next_step is not None:
                    next_step = corruption.next_step.part(result.canvas_R)
                    next_RC = self.next_canvas(result.hidden_RCH, result.before_RC, next_step)
                    shown_KC = shown_KC.index_put((result.canvas_R,), next_RC)
            else:  # sharded weights are gathered layer by layer, in all processes at once: this one takes part
                idle = self._round(batch, np.zeros(1, dtype=np.int64), done, text_SH, soft_KCH, corruption)
                soft_KCH = soft_KCH + zero_from(idle.expected_RCH)
            done += 1
            chosen = chosen[rounds_B[chosen] > done]
        return soft_KCH, shown_KC

    def _round(
        self, batch: Batch, chosen: Ints, index: int, text_SH: Tensor, soft_KCH: Tensor, corruption: Corruption
    ) -> Round:
        """Run the canvases of the chosen examples through the network, conditioned by the previous round."""
        part, text_indices, canvas_indices = batch.layout.part(chosen)
        text_R = send(torch.from_numpy(text_indices), text_SH.device)
        canvas_R = send(torch.from_numpy(canvas_indices), text_SH.device)
        before_RC = corruption.canvases_before(index)[canvas_R]
        with torch.no_grad():
            _, hidden_RCH, _ = self.hidden(part, text_SH[text_R], self.embed(before_RC), soft_KCH[canvas_R])
        temperature: float | Tensor = 1.0
        temperature_K = corruption.temperatures(index)
        if temperature_K is not None:
            temperature = temperature_K[canvas_R][:, None].expand(hidden_RCH.shape[:2])
        # As in the reference, gradients flow into the averaged embeddings, but not into the prediction.
        expected_RCH = self.expected_embedding(hidden_RCH, temperature, fixed=True).to(soft_KCH.dtype)
        return Round(canvas_R=canvas_R, before_RC=before_RC, hidden_RCH=hidden_RCH, expected_RCH=expected_RCH)

    @torch.no_grad()
    def next_canvas(self, hidden_RCH: Tensor, canvas_RC: Tensor, step: NextStep) -> Tensor:
        """Return the canvas after one step of a run, for the canvases that take it; the others stay as they are.

        Random noise never shows a model its own mistakes, such as a token that is written twice and moves the rest of
        the text by one position. A run has them, and the model has to learn to correct them (SUNDAE, arXiv 2112.06749).
        """
        hidden_R, drawn_R = hidden_RCH.flatten(0, 1), step.drawn_KC.flatten()
        size = chunk_rows(self.model.head)
        parts = [self._draw(*part) for part in zip(hidden_R.split(size), drawn_R.split(size), strict=True)]
        token_RC, entropy_RC = (torch.cat(part).view(canvas_RC.shape) for part in zip(*parts, strict=True))
        accepted_RC = lowest_within(entropy_RC, step.bound_K1)
        moved_RC = torch.where(accepted_RC, token_RC, step.noise_KC)
        return torch.where(step.taken_K[:, None] & step.open_KC, moved_RC, canvas_RC)

    def _draw(self, hidden_RH: Tensor, drawn_R: Tensor) -> tuple[Tensor, Tensor]:
        """Return a token drawn from each prediction, and the entropy of the prediction."""
        probability_RV = self.predict(hidden_RH, 1.0, True).float()
        cumulative_RV = probability_RV.cumsum(-1)
        token_R = torch.searchsorted(cumulative_RV, drawn_R[:, None] * cumulative_RV[:, -1:]).squeeze(-1)
        entropy_R = torch.special.entr(probability_RV).sum(-1)
        return token_R.clamp(max=cumulative_RV.shape[-1] - 1), entropy_R

    def expected_embedding(self, hidden: Tensor, temperature: float | Tensor = 1.0, fixed: bool = False) -> Tensor:
        """Return the mean embedding under the prediction, with logits in chunks, in the backward pass too.

        The temperature is one number, or one per token. With `fixed`, no gradient flows into the prediction.
        """
        rows = chunk_rows(self.model.head)
        chunks = hidden.flatten(0, -2).split(rows)
        temperatures: Sequence[float | Tensor]  # one per chunk
        if isinstance(temperature, float):
            temperatures = [temperature] * len(chunks)
        else:
            temperatures = temperature.flatten()[:, None].split(rows)
        expected = [
            checkpoint(self._expected, hidden_RH, of_chunk, fixed, use_reentrant=False)
            for hidden_RH, of_chunk in zip(chunks, temperatures, strict=True)
        ]
        return torch.cat(expected).view(hidden.shape)

    def _expected(self, hidden_RH: Tensor, temperature: float | Tensor, fixed: bool) -> Tensor:
        return self.mean_embedding(self.predict(hidden_RH, temperature, fixed))

    def _predict(self, hidden_RH: Tensor, temperature: float | Tensor, fixed: bool) -> Tensor:
        """Return the probabilities [R, V] of all tokens."""
        logits_RV = self.model.logits(hidden_RH) / temperature
        if fixed:
            logits_RV = logits_RV.detach()
        return logits_RV.softmax(-1, dtype=torch.float32).to(self.model.dtype)

    # --- losses -------------------------------------------------------------------------------------------------

    def _decoder_loss(self, batch: Batch, corruption: Corruption, canvas_KCH: Tensor) -> Tensor:
        certainty_KC = None
        if self.certainty and corruption.recorded_K is not None:
            certainty_KC = (self.certainty * corruption.recorded_K)[:, None].expand(corruption.noisy_KC.shape)
        loss_KC = self._token_losses(canvas_KCH, batch.clean_KC, certainty_KC)
        return mean_per_example(loss_KC.mean(-1), batch.owner_K, batch.size)

    def _encoder_loss(self, batch: Batch, text_SH: Tensor) -> Tensor:
        target_R = batch.target_R
        if not len(target_R):
            return text_SH.new_zeros(batch.size, dtype=torch.float32)
        loss_R = self._token_losses(text_SH[target_R - 1], batch.text_S[target_R])
        return mean_per_example(loss_R, batch.owner_S[target_R], batch.size)

    def _token_losses(self, hidden: Tensor, target: Tensor, certainty: Tensor | None = None) -> Tensor:
        softcap = self.model.config.final_logit_softcapping
        return token_losses(hidden, self.model.head, target, softcap, certainty, self.chunk_loss)

    def _balance(self, scores: list[Tensor], batch: Batch) -> Tensor:
        """Return the load balance loss of Switch (arXiv 2101.03961): 1 if tokens spread evenly over the experts."""
        counted_T = torch.cat([batch.valid_S, torch.ones_like(batch.clean_KC.flatten(), dtype=torch.bool)])
        share_T1 = (counted_T / counted_T.sum())[:, None]
        k = self.model.config.top_k_experts
        return torch.stack([self.balance_of(scores_TE, share_T1, k) for scores_TE in scores]).mean()


def mean_per_example(value_R: Tensor, owner_R: Tensor, examples: int) -> Tensor:
    """Return the mean of each example's values [B]: zero, not NaN, for an example without any."""
    sum_B, count_B = (value_R.new_zeros(examples).index_add(0, owner_R, x) for x in (value_R, torch.ones_like(value_R)))
    return sum_B / count_B.clamp(min=1)


def zero_from(value: Tensor) -> Tensor:
    """Return a zero that depends on a value, so that the pass that gave it also takes part in the backward pass."""
    return 0 * value.sum()


def balance_loss(scores_TE: Tensor, share_T1: Tensor, k: int) -> Tensor:
    """Return the balance of one layer: each expert's share of choices times its mean probability, summed and scaled.

    Tokens are weighted by `share_T1`.
    """
    probability_TE = scores_TE.softmax(-1, dtype=torch.float32)
    often_E = (chosen(probability_TE, k) * share_T1).sum(0) / k
    return scores_TE.shape[-1] * (often_E * (probability_TE * share_T1).sum(0)).sum()
