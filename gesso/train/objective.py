"""The training objective: denoise a canvas, and predict the next token.

The decoder loss is plain cross-entropy to the clean token over *all* positions of the chosen canvases, corrupted or
not, without a 1/t weight. The encoder loss is next-token cross-entropy over the responses. Both are means per example.
A canvas attends to the clean text before it, through the layers' keys and values, and to itself. Text and canvases run
through the network in one pass under a block mask.

B examples, S text, K canvases per example, C canvas, L = S + K·C, T = B·L, H hidden, V vocabulary, E experts, R rows of
a chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils.checkpoint import checkpoint

from gesso.errors import InputError
from gesso.model.attention import Attend
from gesso.model.experts import chosen
from gesso.model.transformer import DiffusionGemma
from gesso.train.attention import block_attention, dense_mask, masked_attention, split_attention, visibility
from gesso.train.batch import Batch, Corruption
from gesso.train.head import chunk_loss, chunk_rows, token_losses
from gesso.train.processes import in_any_process
from gesso.train.recipe import ObjectiveSettings


@dataclass(frozen=True)
class Losses:
    """The losses of each example, their weighted sum, and the load balance of the batch."""

    total_B: Tensor
    decoder_B: Tensor
    encoder_B: Tensor
    balance: Tensor


class Objective(nn.Module):
    """The loss as a module, so that sharding and compilation apply to one forward."""

    def __init__(
        self, model: DiffusionGemma, settings: ObjectiveSettings, checkpoint_activations: bool = False
    ) -> None:
        super().__init__()
        if not model.is_tied:
            raise InputError("only a model whose encoder and decoder share their weights can be trained")
        self.model, self.settings, self.checkpoint_activations = model, settings, checkpoint_activations
        self.flex = False  # use the block attention kernel
        self.scale = model.embed_scale
        self.chunk_loss, self.block_mask, self.balance_of = chunk_loss, create_block_mask, balance_loss

    def forward(self, batch: Batch, corruption: Corruption) -> Losses:
        soft_BKCH = self._condition(batch, corruption)
        text_BSH, canvas_BKCH, scores = self.hidden(batch, self.embed(corruption.noisy_BKC), soft_BKCH)
        decoder_B = self._decoder_loss(batch, corruption, canvas_BKCH)
        encoder_B = self._encoder_loss(batch, text_BSH)
        balance = self._balance(scores, batch) if self.settings.balance_weight else decoder_B.new_zeros(())
        total_B = decoder_B + self.settings.encoder_weight * encoder_B + self.settings.balance_weight * balance
        return Losses(total_B, decoder_B, encoder_B, balance)

    def compile_parts(self) -> None:
        """Compile by layer: layers share their code, so compilation takes seconds per batch shape."""
        self.flex = self.model.device.type == "cuda"
        # Sliding and global layers, with and without gradient, for each batch shape.
        torch._dynamo.config.recompile_limit = 64
        for part in (*self.model.decoder.layers, self.model.decoder.norm):
            part.compile(dynamic=False)
        self.chunk_loss, self.block_mask = torch.compile(chunk_loss), torch.compile(create_block_mask)
        self.balance_of = torch.compile(balance_loss)
        self._expected = torch.compile(self._expected)  # type: ignore[method-assign]

    # --- one pass over text and canvases ------------------------------------------------------------------------

    def embed(self, ids: Tensor) -> Tensor:
        embedded = self.model.decoder.embed_tokens(ids) * self.scale
        kind = ids.device.type
        # Half the memory traffic is the residual stream, so it takes the narrow dtype too.
        return embedded.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else embedded

    def hidden(self, batch: Batch, embedded_BKCH: Tensor, soft_BKCH: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the hidden states of text [B, S, H] and canvases [B, K, C, H], and the router scores by layer."""
        model = self.model
        rows, width = batch.text_BS.shape
        text_BSH = self.embed(batch.text_BS)
        canvas_TH = model.self_conditioning.condition(embedded_BKCH.flatten(0, 2), soft_BKCH.flatten(0, 2))
        x_BLH = torch.cat([text_BSH, canvas_TH.view(rows, -1, text_BSH.shape[-1])], dim=1)
        length = embedded_BKCH.shape[2]
        position_BKC = batch.start_BK[..., None] + torch.arange(length, device=x_BLH.device)
        position_BL = torch.cat(
            [torch.arange(width, device=x_BLH.device).expand(rows, -1), position_BKC.flatten(1)], dim=1
        )
        causal_BL = torch.arange(x_BLH.shape[1], device=x_BLH.device).expand(rows, -1) < width
        attends = self._attends(batch, length)
        call: Callable[..., Any] = nn.Module.__call__
        if self.checkpoint_activations and torch.is_grad_enabled():
            call = partial(checkpoint, use_reentrant=False)
        encoder_L1, decoder_L1 = (torch.stack(tuple(s.layer_scalars)) for s in (model.encoder, model.decoder))
        scalars_LT1 = torch.where(causal_BL.flatten(), encoder_L1, decoder_L1).to(x_BLH.dtype)[..., None]
        out_TH, scores = model.through_layers(
            model.decoder, x_BLH.flatten(0, 1), position_BL.flatten(), attends, list(scalars_LT1), call
        )
        out_BLH = out_TH.view(x_BLH.shape)
        return out_BLH[:, :width], out_BLH[:, width:].unflatten(1, embedded_BKCH.shape[1:3]), scores

    def _attends(self, batch: Batch, canvas_length: int) -> list[Attend]:
        """Return the attention function of every layer."""
        config = self.model.config
        by_window: dict[int | None, Attend] = {}
        rows, width = batch.text_BS.shape
        length, device = width + batch.start_BK.shape[1] * canvas_length, batch.text_BS.device
        # A window wider than the text has no effect.
        windows = [
            config.sliding_window if shape.sliding and config.sliding_window <= width else None
            for shape in config.layers
        ]
        if set(windows) == {None} and batch.common_start is not None:
            split = partial(split_attention, rows=rows, width=width, canvases=batch.start_BK.shape[1])
            return [partial(split, start=batch.common_start)] * len(windows)
        for window in set(windows):
            sees = visibility(batch, canvas_length, window)
            if self.flex:
                blocks = self.block_mask(sees, rows, None, length, length, device=device)
                by_window[window] = partial(block_attention, blocks=blocks, rows=rows)
            else:
                by_window[window] = partial(masked_attention, mask_BLL=dense_mask(sees, rows, length, device))
        return [by_window[window] for window in windows]

    def _condition(self, batch: Batch, corruption: Corruption) -> Tensor:
        """Return the soft embeddings of a first pass without gradient; exact zeros for the other examples.

        Zero logits would be wrong: their soft embedding is the mean of all embeddings.
        """
        soft_BKCH = torch.zeros_like(self.embed(corruption.noisy_BKC))
        chosen_R = corruption.conditioned_R
        if in_any_process(len(chosen_R) > 0, chosen_R.device):
            # Sharded weights are gathered layer by layer, so a process without such examples must run the pass too.
            rows_R = chosen_R if len(chosen_R) else chosen_R.new_zeros(1)
            with torch.no_grad():
                part = batch.rows(rows_R)
                _, canvas_RKCH, _ = self.hidden(part, self.embed(corruption.noisy_BKC[rows_R]), soft_BKCH[rows_R])
            # As in the reference, gradients flow into the averaged embeddings, but not into the prediction.
            expected_RKCH = self.expected_embedding(canvas_RKCH, fixed=True).to(soft_BKCH.dtype)
            soft_BKCH = soft_BKCH.index_put((rows_R,), expected_RKCH if len(chosen_R) else expected_RKCH * 0)
        return soft_BKCH

    def expected_embedding(self, hidden: Tensor, temperature: float = 1.0, fixed: bool = False) -> Tensor:
        """Return the mean embedding under the prediction, with logits in chunks, in the backward pass too.

        With `fixed`, no gradient flows into the prediction.
        """
        chunks = [
            checkpoint(self._expected, hidden_RH, temperature, fixed, use_reentrant=False)
            for hidden_RH in hidden.flatten(0, -2).split(chunk_rows(self.model.head))
        ]
        return torch.cat(chunks).view(hidden.shape)

    def _expected(self, hidden_RH: Tensor, temperature: float, fixed: bool) -> Tensor:
        logits_RV = self.model.logits(hidden_RH) / temperature
        logits_RV = logits_RV.detach() if fixed else logits_RV
        return self.model.soft_embedding(logits_RV)

    # --- losses -------------------------------------------------------------------------------------------------

    def _decoder_loss(self, batch: Batch, corruption: Corruption, canvas_BKCH: Tensor) -> Tensor:
        bonus_BKC = None
        if self.settings.leave_one_out:
            # The observed token's own evidence: with K = V and alpha = 1 - t, it is log(1 + K alpha / (1 - alpha)).
            t_BK = corruption.t_BK
            bonus_BK = torch.log1p(self.model.config.vocab_size * (1 - t_BK) / t_BK)
            bonus_BKC = bonus_BK[..., None].expand(corruption.noisy_BKC.shape)
        loss_BKC = self._token_losses(canvas_BKCH, batch.clean_BKC, corruption.noisy_BKC, bonus_BKC)
        present_BK, loss_BK = batch.present_BK, loss_BKC.mean(-1)
        if self.settings.reweighted:
            loss_BK = loss_BK / (1 - corruption.t_BK).clamp(min=1e-3)
        return (loss_BK * present_BK).sum(-1) / present_BK.sum(-1)

    def _encoder_loss(self, batch: Batch, text_BSH: Tensor) -> Tensor:
        target_BS, hidden_BSH, token_BS = batch.target_BS[:, 1:], text_BSH[:, :-1], batch.text_BS[:, 1:]
        if self.settings.learn_text == "none":
            return text_BSH.new_zeros(len(text_BSH), dtype=torch.float32)
        if self.settings.learn_text == "all":  # nearly every position is a target: cheaper than selecting them
            loss_BS = self._token_losses(hidden_BSH, token_BS) * target_BS
        else:
            selected = self._token_losses(hidden_BSH[target_BS], token_BS[target_BS])
            loss_BS = text_BSH.new_zeros(target_BS.shape, dtype=torch.float32).masked_scatter(target_BS, selected)
        return loss_BS.sum(-1) / target_BS.sum(-1).clamp(min=1)  # zero, not NaN, for an example without targets

    def _token_losses(
        self, hidden: Tensor, target: Tensor, observed: Tensor | None = None, bonus: Tensor | None = None
    ) -> Tensor:
        softcap = self.model.config.final_logit_softcapping
        return token_losses(hidden, self.model.head, target, softcap, observed, bonus, self.chunk_loss)

    def _balance(self, scores: list[Tensor], batch: Batch) -> Tensor:
        """Return the load balance loss of Switch (arXiv 2101.03961): 1 if tokens spread evenly over the experts."""
        rows = len(batch.text_BS)
        present_BL = batch.present_BK.repeat_interleave(batch.clean_BKC.shape[-1], dim=1)
        counted_T = torch.cat([batch.valid_BS, present_BL], dim=1).view(rows, -1).flatten()
        share_T1 = (counted_T / counted_T.sum())[:, None]
        k = self.model.config.top_k_experts
        return torch.stack([self.balance_of(scores_TE, share_T1, k) for scores_TE in scores]).mean()


def balance_loss(scores_TE: Tensor, share_T1: Tensor, k: int) -> Tensor:
    """Return the balance of one layer: each expert's share of choices times its mean probability, summed and scaled.

    Tokens are weighted by `share_T1`.
    """
    probability_TE = scores_TE.softmax(-1, dtype=torch.float32)
    often_E = (chosen(probability_TE, k) * share_T1).sum(0) / k
    return scores_TE.shape[-1] * (often_E * (probability_TE * share_T1).sum(0)).sum()
