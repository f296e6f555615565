"""The training objective: denoise a canvas, and predict the next token.

1. Text and noisy canvases become embeddings. Some canvases first get passes without gradient, as the steps of a run do
   (`first_passes.py`).
2. Texts and canvases of all examples run through the network once, as one sequence (`layout.py`). Text attends
   causally, as in the encoder. A canvas attends to the clean text before it and to all of itself, as in the decoder.
3. The decoder loss is plain cross-entropy to the clean token over *all* positions of the canvases, corrupted or not,
   without a 1/t weight. The encoder loss is next-token cross-entropy over the responses. Both are means per example.

B examples, S text of all examples, K canvases of all examples, C canvas, T = S + K·C, H hidden, V vocabulary, E
experts, L layers, R rows of a chunk, or some tokens.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gesso.diffusion.hash import send
from gesso.errors import InputError
from gesso.model.attention import Attend
from gesso.model.experts import chosen
from gesso.model.transformer import DiffusionGemma
from gesso.train.attention import FUSED_DIM, block_attention, compiled_attention, tile_mask
from gesso.train.batch import Batch, Corruption
from gesso.train.blocks import attention_groups
from gesso.train.first_passes import first_passes
from gesso.train.head import chunk_loss, chunk_rows, token_losses
from gesso.train.layout import Layout
from gesso.train.recipe import ObjectiveSettings
from gesso.train.seeing import Seeing


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
        text_SH = self.embed_text(batch)
        soft_KCH, shown_KC = first_passes(self, batch, text_SH, corruption)
        shown_KCH = self.embed(shown_KC)
        text_SH, canvas_KCH, scores = self.hidden(batch.layout, text_SH, shown_KCH, soft_KCH)

        decoder_B = self._decoder_loss(batch, corruption, canvas_KCH)
        encoder_B = self._encoder_loss(batch, text_SH)
        balance = self._balance(scores, batch) if self.settings.balance_weight else decoder_B.new_zeros(())
        total_B = decoder_B + self.settings.encoder_weight * encoder_B + self.settings.balance_weight * balance
        return Losses(total_B=total_B, decoder_B=decoder_B, encoder_B=encoder_B, balance=balance)

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
        model = self.model
        device = text_SH.device
        canvas_RH = model.self_conditioning.condition(embedded_KCH.flatten(0, 1), soft_KCH.flatten(0, 1))
        x_TH = torch.cat([text_SH, canvas_RH])
        position_T = send(torch.from_numpy(layout.position_T), device)

        # Encoder and decoder are the same layers, except for the output scale of each.
        encoder_L1 = torch.stack(tuple(model.encoder.layer_scalars))
        decoder_L1 = torch.stack(tuple(model.decoder.layer_scalars))
        is_text_T = torch.arange(len(x_TH), device=device) < len(text_SH)
        scalars_LT1 = torch.where(is_text_T, encoder_L1, decoder_L1).to(x_TH.dtype)[..., None]

        recompute = self.checkpoint_activations and torch.is_grad_enabled()
        attends = self._attends(layout, device)
        out_TH, scores = model.decoder(x_TH, position_T, attends, scalars=list(scalars_LT1), recompute=recompute)
        return out_TH[: len(text_SH)], out_TH[len(text_SH) :].view(embedded_KCH.shape), scores

    def _attends(self, layout: Layout, device: torch.device) -> list[Attend]:
        """Return the attention function of every layer."""
        config = self.model.config
        kinds = []  # of each layer: the window, and whether FlexAttention runs it
        for shape in config.layers:
            # A window wider than every text has no effect.
            slides = shape.sliding and config.sliding_window <= layout.width_B.max()
            kinds.append((config.sliding_window if slides else None, self.flex and shape.head_dim <= FUSED_DIM))
        attend_by_kind: dict[tuple[int | None, bool], Attend] = {}
        for window, flex in set(kinds):
            if flex:
                attend = partial(compiled_attention, blocks=tile_mask(layout, window, device))
            else:
                attend = partial(block_attention, groups=attention_groups(layout, window, device))
            attend_by_kind[window, flex] = attend
        return [attend_by_kind[kind] for kind in kinds]

    # --- the prediction as an embedding -------------------------------------------------------------------------

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

    # --- compilation --------------------------------------------------------------------------------------------

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


def mean_per_example(value_R: Tensor, owner_R: Tensor, examples: int) -> Tensor:
    """Return the mean of each example's values [B]: zero, not NaN, for an example without any."""
    sum_B = value_R.new_zeros(examples).index_add(0, owner_R, value_R)
    count_B = value_R.new_zeros(examples).index_add(0, owner_R, torch.ones_like(value_R))
    return sum_B / count_B.clamp(min=1)


def balance_loss(scores_TE: Tensor, share_T1: Tensor, k: int) -> Tensor:
    """Return the balance of one layer: each expert's share of choices times its mean probability, summed and scaled.

    Tokens are weighted by `share_T1`.
    """
    probability_TE = scores_TE.softmax(-1, dtype=torch.float32)
    often_E = (chosen(probability_TE, k) * share_T1).sum(0) / k
    return scores_TE.shape[-1] * (often_E * (probability_TE * share_T1).sum(0)).sum()
