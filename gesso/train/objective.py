"""The training objective: denoise a canvas, and predict the next token.

The decoder loss is plain cross-entropy to the clean token over *all* positions of the chosen canvases, corrupted or
not, without a 1/t weight; the encoder loss is next-token cross-entropy over the responses. Both are means over an
example. The canvases of an example see its clean text before them, through the layers' keys and values, and themselves;
nothing else. Text and canvases run through the network in one pass under a block mask.

B examples, S text, K canvases an example, C canvas, L = S + K·C, T = B·L, H hidden, V vocabulary, N query heads, M
key/value heads, D head dim, E experts, R rows of a chunk.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from gesso.errors import InputError
from gesso.model.attention import Attend
from gesso.model.experts import chosen
from gesso.model.transformer import DiffusionGemma, softcapped_logits
from gesso.train.batch import Batch, Corruption

CHUNK_BYTES = 512 * 2**20  # of float32 logits held at once


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    canvases_per_example: int | str = 1  # or "all"
    encoder_weight: float = 1.0
    encoder_on: str = "response"  # or "all": the prompts too
    self_conditioning: float = 0.5  # share of examples that get a first pass
    canvas_lengths: tuple[int, ...] = ()  # of the batches, in turn; none: the model's own
    draws: tuple[int, ...] = (1,)  # of the batches, in turn: levels of noise each canvas is shown at
    pinned: float = 0.0  # share of examples with noise in one stretch of the canvas only
    reweighted: bool = False  # 1 / (1 - t): the cleaner the canvas, the less it counts
    leave_one_out: bool = False  # arXiv 2605.22765
    balance_weight: float = 0.0  # of the router; a model trained from scratch needs some

    def __post_init__(self) -> None:
        k = self.canvases_per_example
        if k != "all" and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
            raise InputError(f'objective.canvases_per_example must be a positive integer or "all", got {k!r}')
        if self.encoder_on not in ("response", "all"):
            raise InputError(f'objective.encoder_on must be "response" or "all", got {self.encoder_on!r}')
        for name in ("self_conditioning", "pinned"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"objective.{name} is a share between 0 and 1, got {getattr(self, name)}")
        for name in ("canvas_lengths", "draws"):
            if any(not isinstance(length, int) or length < 1 for length in getattr(self, name)):
                raise InputError(f"objective.{name} are positive integers, got {list(getattr(self, name))}")
        if not self.draws:
            raise InputError("objective.draws needs at least one number")
        for name in ("encoder_weight", "balance_weight"):
            if not math.isfinite(getattr(self, name)) or getattr(self, name) < 0:
                raise InputError(f"objective.{name} must be a number of at least 0, got {getattr(self, name)!r}")

    @property
    def per_example(self) -> int | None:
        return None if self.canvases_per_example == "all" else int(self.canvases_per_example)

    @property
    def learn_text(self) -> str:
        """What the encoder learns: "all", "response", or "none"."""
        return self.encoder_on if self.encoder_weight else "none"


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
        if not model.is_tied:
            raise InputError("training needs a model whose encoder and decoder share their weights")
        self.model, self.settings, self.checkpoint_activations = model, settings, checkpoint_activations
        self.flex = False  # attention as one kernel
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
        """Compile a layer, not the whole: layers are alike, so it takes seconds, and once for each shape of a batch."""
        self.flex = self.model.device.type == "cuda"
        # Sliding and global layers, with and without gradient, for each shape.
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
        # The stream between the layers is half of what moves through memory.
        return embedded.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else embedded

    def hidden(self, batch: Batch, embedded_BKCH: Tensor, soft_BKCH: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Hidden states of text [B, S, H] and canvases [B, K, C, H], given the canvases' embeddings; router scores."""
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
        """Who sees whom, for every layer."""
        config = self.model.config
        found: dict[int | None, Attend] = {}
        rows, width = batch.text_BS.shape
        length, device = width + batch.start_BK.shape[1] * canvas_length, batch.text_BS.device
        # A window that no text outgrows is none.
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
                found[window] = partial(block_attention, blocks=blocks, rows=rows)
            else:
                found[window] = partial(masked_attention, mask_BLL=dense_mask(sees, rows, length, device))
        return [found[window] for window in windows]

    def _condition(self, batch: Batch, corruption: Corruption) -> Tensor:
        """Soft embeddings of a first pass, without gradient; exact zeros for the other examples.

        Zero logits would not do: their soft embedding is the mean of all embeddings.
        """
        soft_BKCH = torch.zeros_like(self.embed(corruption.noisy_BKC))
        chosen_R = corruption.conditioned_R
        if anywhere(len(chosen_R) > 0, chosen_R.device):
            # Sharded weights are put together layer by layer, so a process with nobody to condition runs along, too.
            rows_R = chosen_R if len(chosen_R) else chosen_R.new_zeros(1)
            with torch.no_grad():
                part = batch.rows(rows_R)
                _, canvas_RKCH, _ = self.hidden(part, self.embed(corruption.noisy_BKC[rows_R]), soft_BKCH[rows_R])
            # The prediction is taken as it is; the embeddings it weighs do learn from it, as in the reference.
            expected_RKCH = self.expected_embedding(canvas_RKCH, fixed=True).to(soft_BKCH.dtype)
            soft_BKCH = soft_BKCH.index_put((rows_R,), expected_RKCH if len(chosen_R) else expected_RKCH * 0)
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
        logits_RV = logits_RV.detach() if fixed else logits_RV
        return self.model.soft_embedding(logits_RV)

    # --- losses -------------------------------------------------------------------------------------------------

    def _decoder_loss(self, batch: Batch, corruption: Corruption, canvas_BKCH: Tensor) -> Tensor:
        bonus_BKC = None
        if self.settings.leave_one_out:
            # What the observed token says by itself: with K = V, alpha = 1 - t it adds log(1 + K alpha / (1 - alpha)).
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
        if self.settings.learn_text == "all":  # nearly every position: cheaper than picking them out
            loss_BS = self._token_losses(hidden_BSH, token_BS) * target_BS
        else:
            found = self._token_losses(hidden_BSH[target_BS], token_BS[target_BS])
            loss_BS = text_BSH.new_zeros(target_BS.shape, dtype=torch.float32).masked_scatter(target_BS, found)
        return loss_BS.sum(-1) / target_BS.sum(-1).clamp(min=1)  # a prompt without any target counts as zero, not NaN

    def _token_losses(
        self, hidden: Tensor, target: Tensor, observed: Tensor | None = None, bonus: Tensor | None = None
    ) -> Tensor:
        softcap = self.model.config.final_logit_softcapping
        return token_losses(hidden, self.model.head, target, softcap, observed, bonus, self.chunk_loss)

    def _balance(self, scores: list[Tensor], batch: Batch) -> Tensor:
        """Switch's load balance (arXiv 2101.03961): 1 when tokens spread evenly over the experts."""
        rows = len(batch.text_BS)
        present_BL = batch.present_BK.repeat_interleave(batch.clean_BKC.shape[-1], dim=1)
        counted_T = torch.cat([batch.valid_BS, present_BL], dim=1).view(rows, -1).flatten()
        share_T1 = (counted_T / counted_T.sum())[:, None]
        k = self.model.config.top_k_experts
        return torch.stack([self.balance_of(scores_TE, share_T1, k) for scores_TE in scores]).mean()


def balance_loss(scores_TE: Tensor, share_T1: Tensor, k: int) -> Tensor:
    """Of one layer: how often experts are chosen and how likely they are, multiplied; tokens count by their share."""
    probability_TE = scores_TE.softmax(-1, dtype=torch.float32)
    often_E = (chosen(probability_TE, k) * share_T1).sum(0) / k
    return scores_TE.shape[-1] * (often_E * (probability_TE * share_T1).sum(0)).sum()


Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # example, head, query, key (indices of any shape) to bool


def visibility(batch: Batch, canvas_length: int, window: int | None) -> Sees:
    """Who sees whom: text causally, a canvas all of itself and the text before its start.

    In a sliding layer that is the last window tokens for text, its own included, and the last window - 1 before a
    canvas, the same for every position of it. Padding sees itself alone, so that no row is empty.
    """
    width = batch.text_BS.shape[1]
    reach = width + 1 if window is None else window
    length_B, start_BK, present_BK = batch.valid_BS.sum(-1), batch.start_BK, batch.present_BK

    def sees(b: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        text_q, text_k = q < width, k < width
        canvas_q, canvas_k = (torch.clamp(i - width, min=0) // canvas_length for i in (q, k))
        start = start_BK[b, canvas_q]
        of_text = (k <= q) & (k > q - reach)
        of_canvas = (k < start) & (k > start - reach)
        text = text_k & (k < length_B[b]) & torch.where(text_q, of_text, of_canvas)
        canvas = ~text_q & ~text_k & (canvas_q == canvas_k) & present_BK[b, canvas_k]
        return text | canvas | (q == k)

    return sees


def dense_mask(sees: Sees, rows: int, width: int, device: torch.device) -> Tensor:
    """All pairs [B, 1, L, L]."""
    b, head, q, k = torch.meshgrid(
        *(torch.arange(size, device=device) for size in (rows, 1, width, width)), indexing="ij"
    )
    return sees(b, head, q, k)


def masked_attention(q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, mask_BLL: Tensor) -> Tensor:
    q, k, v = (x.unflatten(0, (len(mask_BLL), -1)).transpose(1, 2) for x in (q_TND, k_TMD, v_TMD))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_BLL, scale=1.0, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(0, 1)


def split_attention(
    q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, rows: int, width: int, canvases: int, start: int
) -> Tensor:
    """The same where all canvases come after as much text, and no window ends before it: no mask is needed."""
    q, k, v = (x.unflatten(0, (rows, -1)).transpose(1, 2) for x in (q_TND, k_TMD, v_TMD))
    attend = partial(F.scaled_dot_product_attention, scale=1.0, enable_gqa=q.shape[1] != k.shape[1])
    text_BNSD = attend(q[:, :, :width], k[:, :, :width], v[:, :, :width], is_causal=True)

    def of_canvases(x: Tensor) -> Tensor:  # [B, K, N, C, D]
        return x[:, :, width:].unflatten(2, (canvases, -1)).transpose(1, 2)

    def seen(x: Tensor) -> Tensor:
        text = x[:, None, :, :start].expand(-1, canvases, -1, -1, -1)
        return torch.cat([text, of_canvases(x)], dim=3).flatten(0, 1)

    canvas = attend(of_canvases(q).flatten(0, 1), seen(k), seen(v)).unflatten(0, (rows, canvases))
    canvas_BNLD = canvas.transpose(1, 2).flatten(2, 3)
    return torch.cat([text_BNSD, canvas_BNLD], dim=2).transpose(1, 2).flatten(0, 1)


def block_attention(q_TND: Tensor, k_TMD: Tensor, v_TMD: Tensor, blocks: BlockMask, rows: int) -> Tensor:
    """The same as a kernel that skips the blocks nobody sees; it exists compiled, on a GPU."""
    # Autocast does not know this operation: the rotation has left queries and keys in the dtype of the weights.
    q, k, v = (x.to(v_TMD.dtype).unflatten(0, (rows, -1)).transpose(1, 2) for x in (q_TND, k_TMD, v_TMD))
    out = flex_attention(q, k, v, block_mask=blocks, scale=1.0, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(0, 1)


def token_losses(
    hidden: Tensor, head_VH: Tensor, target: Tensor, softcap: float, observed: Tensor | None = None,
    bonus: Tensor | None = None, of_chunk: Callable[..., Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Cross-entropy of every token, shaped as `target`. Logits exist a chunk at a time, in the backward pass too."""
    pieces = []
    rows, of_chunk = chunk_rows(head_VH), of_chunk or chunk_loss
    extras = [None if x is None else x.flatten().split(rows) for x in (observed, bonus)]
    for i, (hidden_RH, target_R) in enumerate(
        zip(hidden.flatten(0, -2).split(rows), target.flatten().split(rows), strict=True)
    ):
        observed_R, bonus_R = (None if parts is None else parts[i] for parts in extras)
        pieces.append(
            checkpoint(
                of_chunk or chunk_loss, hidden_RH, head_VH, target_R, softcap, observed_R, bonus_R, use_reentrant=False
            )
        )
    return torch.cat(pieces).view(target.shape) if pieces else hidden.new_zeros(target.shape, dtype=torch.float32)


def chunk_loss(
    hidden_RH: Tensor, head_VH: Tensor, target_R: Tensor, softcap: float, observed_R: Tensor | None,
    bonus_R: Tensor | None,
) -> Tensor:  # fmt: skip
    logits_RV = softcapped_logits(hidden_RH, head_VH, softcap)
    if observed_R is not None and bonus_R is not None:
        logits_RV = logits_RV.scatter_add(-1, observed_R[:, None], bonus_R[:, None].to(logits_RV.dtype))
    return F.cross_entropy(logits_RV, target_R, reduction="none")


def chunk_rows(head_VH: Tensor) -> int:
    return max(1, CHUNK_BYTES // (4 * head_VH.shape[0]))


def anywhere(here: bool, device: torch.device) -> bool:
    """Whether it is so in any of the processes."""
    if not dist.is_initialized():
        return here
    flag = torch.tensor(int(here), device=device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)
