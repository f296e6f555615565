"""The training objective: denoise a canvas, and predict the next token.

The decoder loss is plain cross-entropy to the clean token over *all* positions of the chosen canvases, corrupted or
not, without a 1/t weight; the encoder loss is next-token cross-entropy over the responses. Both are means over an
example. The canvases of an example see its clean text before them, through the layers' keys and values, and themselves;
nothing else. Text and canvases run through the network in one pass under a block mask.

B examples, S text, K canvases an example, C canvas, L = S + K·C, T = B·L, H hidden, V vocabulary, N query heads, M
key/value heads, D head dim, E experts, R rows of a chunk.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gesso import ops
from gesso.errors import InputError
from gesso.model.experts import Router
from gesso.model.transformer import DiffusionGemma
from gesso.ops import vocab
from gesso.train.batch import Batch, Corruption


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    canvases_per_example: int | str = 1  # or "all"
    encoder_weight: float = 1.0
    encoder_on: str = "response"  # or "all": the prompts too
    self_conditioning: float = 0.5  # share of examples that get a first pass
    reweighted: bool = False  # 1 / (1 - t): the cleaner the canvas, the less it counts
    leave_one_out: bool = False  # arXiv 2605.22765
    balance_weight: float = 0.0  # of the router; a model trained from scratch needs some

    def __post_init__(self) -> None:
        k = self.canvases_per_example
        if k != "all" and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
            raise InputError(f'objective.canvases_per_example must be a positive integer or "all", got {k!r}')
        if self.encoder_on not in ("response", "all"):
            raise InputError(f'objective.encoder_on must be "response" or "all", got {self.encoder_on!r}')
        if not 0 <= self.self_conditioning <= 1:
            raise InputError(f"objective.self_conditioning is a share between 0 and 1, got {self.self_conditioning}")
        for name in ("encoder_weight", "balance_weight"):
            if not math.isfinite(getattr(self, name)) or getattr(self, name) < 0:
                raise InputError(f"objective.{name} must be a number of at least 0, got {getattr(self, name)!r}")

    @property
    def per_example(self) -> int | None:
        return None if self.canvases_per_example == "all" else int(self.canvases_per_example)


@dataclass(frozen=True)
class Losses:
    """One number an example, and their weighted sum."""

    total_B: Tensor
    decoder_B: Tensor
    encoder_B: Tensor
    balance: Tensor


class Objective(nn.Module):
    """A module, so that sharding and compilation have one forward to take hold of."""

    def __init__(
        self, model: DiffusionGemma, settings: ObjectiveSettings, checkpoint_activations: bool = False
    ) -> None:
        super().__init__()
        if model.encoder.layers is not model.decoder.layers:
            raise InputError("training needs a model whose encoder and decoder share their weights")
        self.model, self.settings, self.checkpoint_activations = model, settings, checkpoint_activations

    def forward(self, batch: Batch, corruption: Corruption) -> Losses:
        soft_BKCH = self._condition(batch, corruption)
        with routing(self.model) as scores:
            text_BSH, canvas_BKCH = self.hidden(batch, self.embed(corruption.noisy_BKC), soft_BKCH)
        decoder_B = self._decoder_loss(batch, corruption, canvas_BKCH)
        encoder_B = self._encoder_loss(batch, text_BSH)
        balance = self._balance(scores, batch) if self.settings.balance_weight else decoder_B.new_zeros(())
        total_B = decoder_B + self.settings.encoder_weight * encoder_B + self.settings.balance_weight * balance
        return Losses(total_B, decoder_B, encoder_B, balance)

    # --- one pass over text and canvases ------------------------------------------------------------------------

    def embed(self, ids: Tensor) -> Tensor:
        return self.model.decoder.embed_tokens(ids) * self.model.embed_scale

    def hidden(self, batch: Batch, embedded_BKCH: Tensor, soft_BKCH: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states of text [B, S, H] and canvases [B, K, C, H], given the canvases' embeddings."""
        model = self.model
        rows, width = batch.text_BS.shape
        text_BSH = self.embed(batch.text_BS)
        tokens = embedded_BKCH.shape[:-1].numel()
        canvas_TH = model.self_conditioning.condition(embedded_BKCH.flatten(0, 2), soft_BKCH.flatten(0, 2), [tokens])
        x_BLH = torch.cat([text_BSH, canvas_TH.view(rows, -1, text_BSH.shape[-1])], dim=1)
        length = embedded_BKCH.shape[2]
        position_BKC = batch.start_BK[..., None] + torch.arange(length, device=x_BLH.device)
        position_BL = torch.cat(
            [torch.arange(width, device=x_BLH.device).expand(rows, -1), position_BKC.flatten(1)], dim=1
        )
        causal_BL = torch.arange(x_BLH.shape[1], device=x_BLH.device).expand(rows, -1) < width
        masks = {window: block_mask(batch, length, window) for window in (None, model.config.sliding_window)}
        attends = [
            partial(masked_attention, mask_BLL=masks[model.config.sliding_window if shape.sliding else None])
            for shape in model.config.layers
        ]
        call: Callable[..., Tensor] = nn.Module.__call__
        if self.checkpoint_activations and torch.is_grad_enabled():
            call = partial(checkpoint, use_reentrant=False)
        x_TH = x_BLH.flatten(0, 1)
        out_TH = model.through(
            model.decoder, x_TH, [len(x_TH)], position_BL.flatten(), causal_BL.flatten(), attends, call
        )
        out_BLH = out_TH.view(x_BLH.shape)
        return out_BLH[:, :width], out_BLH[:, width:].unflatten(1, embedded_BKCH.shape[1:3])

    def _condition(self, batch: Batch, corruption: Corruption) -> Tensor:
        """Soft embeddings of a first pass, without gradient; exact zeros for the other examples.

        Zero logits would not do: their soft embedding is the mean of all embeddings.
        """
        shape = (*corruption.noisy_BKC.shape, self.model.config.hidden_size)
        soft_BKCH = torch.zeros(shape, device=corruption.noisy_BKC.device, dtype=self.model.dtype)
        chosen_B = corruption.conditioned_B
        if anywhere(bool(chosen_B.any()), chosen_B.device):
            # Sharded weights are put together layer by layer, so a process with nobody to condition runs along, too.
            rows_B = chosen_B if chosen_B.any() else torch.arange(len(chosen_B), device=chosen_B.device) == 0
            with torch.no_grad():
                part = Batch(*(getattr(batch, name)[rows_B] for name in Batch.__annotations__))
                _, canvas_BKCH = self.hidden(part, self.embed(corruption.noisy_BKC[rows_B]), soft_BKCH[rows_B])
            # The prediction is taken as it is; the embeddings it weighs do learn from it, as in the reference.
            expected_BKCH = self.expected_embedding(canvas_BKCH, fixed=True).to(soft_BKCH.dtype)
            soft_BKCH = soft_BKCH.index_put((rows_B.nonzero().squeeze(-1),), expected_BKCH)
            soft_BKCH = soft_BKCH * chosen_B[:, None, None, None]
        return soft_BKCH

    def expected_embedding(self, hidden: Tensor, temperature: float = 1.0, fixed: bool = False) -> Tensor:
        """The mean embedding under the prediction; logits a chunk at a time, in the backward pass too.

        `fixed` sends no gradient into the prediction.
        """
        pieces = [
            checkpoint(self._expected, hidden_RH, temperature, fixed, use_reentrant=False)
            for hidden_RH in hidden.flatten(0, -2).split(chunk_rows(self.model.head))
        ]
        return torch.cat(pieces).view(hidden.shape)

    def _expected(self, hidden_RH: Tensor, temperature: float, fixed: bool) -> Tensor:
        logits_RV = self.model.logits(hidden_RH) / temperature
        return self.model.soft_embedding(logits_RV.detach() if fixed else logits_RV)

    # --- losses -------------------------------------------------------------------------------------------------

    def _decoder_loss(self, batch: Batch, corruption: Corruption, canvas_BKCH: Tensor) -> Tensor:
        bonus_BKC = None
        if self.settings.leave_one_out:
            # What the observed token says by itself: with K = V, alpha = 1 - t it adds log(1 + K alpha / (1 - alpha)).
            t_B = corruption.t_B
            bonus_B = torch.log1p(self.model.config.vocab_size * (1 - t_B) / t_B)
            bonus_BKC = bonus_B[:, None, None].expand(corruption.noisy_BKC.shape)
        loss_BKC = token_losses(
            canvas_BKCH, self.model.head, batch.clean_BKC, self.model.config.final_logit_softcapping,
            corruption.noisy_BKC, bonus_BKC,
        )  # fmt: skip
        present_BK = batch.present_BK
        loss_B = (loss_BKC.mean(-1) * present_BK).sum(-1) / present_BK.sum(-1)
        if self.settings.reweighted:
            loss_B = loss_B / (1 - corruption.t_B).clamp(min=1e-3)
        return loss_B

    def _encoder_loss(self, batch: Batch, text_BSH: Tensor) -> Tensor:
        target_BS = batch.target_BS[:, 1:]
        loss_BS = text_BSH.new_zeros(target_BS.shape, dtype=torch.float32)
        softcap = self.model.config.final_logit_softcapping
        found = token_losses(text_BSH[:, :-1][target_BS], self.model.head, batch.text_BS[:, 1:][target_BS], softcap)
        loss_BS = loss_BS.masked_scatter(target_BS, found)
        return loss_BS.sum(-1) / target_BS.sum(-1).clamp(min=1)  # a prompt without any target counts as zero, not NaN

    def _balance(self, scores: list[Tensor], batch: Batch) -> Tensor:
        """Switch's load balance (arXiv 2101.03961): 1 when tokens spread evenly over the experts."""
        rows = len(batch.text_BS)
        present_BL = batch.present_BK.repeat_interleave(batch.clean_BKC.shape[-1], dim=1)
        counted_T = torch.cat([batch.valid_BS, present_BL], dim=1).view(rows, -1).flatten()
        losses = []
        for scores_TE in scores:
            probability_TE = scores_TE[counted_T].softmax(-1, dtype=torch.float32)
            k = self.model.config.top_k_experts
            chosen_TE = torch.zeros_like(probability_TE).scatter(-1, probability_TE.topk(k).indices, 1.0 / k)
            losses.append(scores_TE.shape[-1] * (chosen_TE.mean(0) * probability_TE.mean(0)).sum())
        return torch.stack(losses).mean()


def block_mask(batch: Batch, canvas_length: int, window: int | None) -> Tensor:
    """Who sees whom [B, 1, L, L]: text causally, a canvas all of itself and the text before its start.

    In a sliding layer that is the last window tokens for text, its own included, and the last window - 1 before a
    canvas, the same for every position of it. Padding sees itself alone, so that no row is empty.
    """
    rows, width = batch.text_BS.shape
    device = batch.text_BS.device
    canvases = batch.start_BK.shape[1]
    number_L = torch.cat(  # -1 for text, else which canvas
        [
            torch.full((width,), -1, device=device),
            torch.arange(canvases, device=device).repeat_interleave(canvas_length),
        ]
    )
    key_S = torch.arange(width, device=device)
    start_BL1 = batch.start_BK.repeat_interleave(canvas_length, dim=1)[..., None]
    text_to_text = key_S[None, :] <= key_S[:, None]
    canvas_to_text = key_S < start_BL1
    if window is not None:
        text_to_text = text_to_text & (key_S[None, :] > key_S[:, None] - window)
        canvas_to_text = canvas_to_text & (key_S >= start_BL1 - (window - 1))
    sees_text_BLS = torch.cat([text_to_text.expand(rows, -1, -1), canvas_to_text], dim=1) & batch.valid_BS[:, None, :]
    same_LL = (number_L[:, None] == number_L[None, width:]) & (number_L[:, None] >= 0)
    present_B1L = batch.present_BK.repeat_interleave(canvas_length, dim=1)[:, None, :]
    mask_BLL = torch.cat([sees_text_BLS, same_LL & present_B1L], dim=2)
    return (mask_BLL | torch.eye(len(number_L), dtype=torch.bool, device=device))[:, None]


def masked_attention(q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, mask_BLL: Tensor) -> Tensor:
    rows = len(mask_BLL)
    q, k, v = (x.unflatten(0, (rows, -1)).transpose(1, 2) for x in (q_TND, k_TMD, v_TMD))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_BLL, scale=1.0, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(0, 1)


def token_losses(
    hidden: Tensor, head_VH: Tensor, target: Tensor, softcap: float, observed: Tensor | None = None,
    bonus: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Cross-entropy of every token, shaped as `target`. Logits exist a chunk at a time, in the backward pass too."""
    pieces = []
    rows = chunk_rows(head_VH)
    extras = [None if x is None else x.flatten().split(rows) for x in (observed, bonus)]
    for i, (hidden_RH, target_R) in enumerate(
        zip(hidden.flatten(0, -2).split(rows), target.flatten().split(rows), strict=True)
    ):
        observed_R, bonus_R = (None if parts is None else parts[i] for parts in extras)
        pieces.append(
            checkpoint(_chunk_loss, hidden_RH, head_VH, target_R, softcap, observed_R, bonus_R, use_reentrant=False)
        )
    return torch.cat(pieces).view(target.shape) if pieces else hidden.new_zeros(target.shape, dtype=torch.float32)


def _chunk_loss(
    hidden_RH: Tensor, head_VH: Tensor, target_R: Tensor, softcap: float, observed_R: Tensor | None,
    bonus_R: Tensor | None,
) -> Tensor:  # fmt: skip
    logits_RV = ops.softcapped_logits(hidden_RH, head_VH, softcap)
    if observed_R is not None and bonus_R is not None:
        logits_RV = logits_RV.scatter_add(-1, observed_R[:, None], bonus_R[:, None].to(logits_RV.dtype))
    return F.cross_entropy(logits_RV, target_R, reduction="none")


def chunk_rows(head_VH: Tensor) -> int:
    return max(1, vocab.CHUNK_BYTES // (4 * head_VH.shape[0]))


def anywhere(here: bool, device: torch.device) -> bool:
    """Whether it is so in any of the processes."""
    if not dist.is_initialized():
        return here
    flag = torch.tensor(int(here), device=device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


@contextmanager
def routing(model: DiffusionGemma) -> Iterator[list[Tensor]]:
    """Collects the scores [T, E] of every router that runs inside the block."""
    scores: list[Tensor] = []
    hooks = [
        module.proj.register_forward_hook(lambda _, __, output: scores.append(output))
        for module in model.modules()
        if isinstance(module, Router)
    ]
    try:
        yield scores
    finally:
        for hook in hooks:
            hook.remove()
