"""DiffusionGemma: a transformer with mixture-of-experts layers that writes text by discrete diffusion.

Text is written one canvas at a time. A canvas is a block of tokens (256 in the released model) that starts as random
tokens. In each denoising step the network predicts all of its positions at once, and a sampler (`gesso/diffusion`)
replaces some of the tokens. The text before it is the prompt and the finished canvases. So the network has two uses:

    encode    read text once, with causal attention, and append its keys and values to the KV cache
    denoise   read a canvas, which attends to the cache and to all of itself, and return logits for every position

This file has the whole network from top to bottom: the model, its stack of layers, one layer, and attention. The parts
of a layer are in `experts.py`, `modules.py` (norms and MLP) and `rope.py`; attention to cached keys is in
`attention.py`. It is plain PyTorch, one sequence at a time: the specification that faster backends are tested with.

Names of tensors end with their dimensions: B batch, S tokens of text, C tokens of a canvas, T tokens of either, H
hidden, V vocabulary, N query heads, M key/value heads, D head dim, E experts, K experts per token.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gesso.errors import InputError
from gesso.model.attention import Attend, AttendWithCache, attend_with_cache
from gesso.model.cache import KVCache
from gesso.model.config import Config, LayerShape
from gesso.model.encoder_input import split_batch
from gesso.model.experts import Experts, Router
from gesso.model.modules import Embedding, GatedMLP, Linear, RMSNorm, SelfConditioning, rms_norm
from gesso.model.rope import Rotation, frequencies, rotate, rotation
from gesso.model.vision import Vision


class DiffusionGemma(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        tied = config.tie_word_embeddings
        # In a tied model, as released, encoder and decoder are the same weights, and so are embedding and output head.
        self.decoder = Stack(config)
        self.encoder = Stack(config, shared=self.decoder if tied else None)
        self.self_conditioning = SelfConditioning(config)
        self.lm_head = None if tied else nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.vision: Vision | None = None  # a checkpoint may come without; `gesso.checkpoint.vision` attaches it

    # --- the two uses -------------------------------------------------------------------------------------------

    def encode(
        self, ids_BS: Tensor, cache: KVCache, padding: Tensor | None = None, images: Sequence[Tensor] = ()
    ) -> Tensor:
        """Append text to the cache and return its hidden states [B, S, H].

        `padding` [B, S] is True where there is no text. Padding is neither encoded nor counted in positions, wherever
        it is, and its hidden states are zeros. `images` are the results of `see`, in the order in which the runs of
        image tokens come, row by row.
        """
        self._check_batch(ids_BS, cache)
        is_text_BS = torch.ones_like(ids_BS, dtype=torch.bool) if padding is None else ~padding
        if not is_text_BS.any():
            raise InputError("nothing to encode: every token is marked as padding")
        segments_by_row = split_batch(ids_BS, is_text_BS, images, self.config.image_token_id)

        for row, segments in enumerate(segments_by_row):
            cache.reserve(row, sum(len(segment.ids_S) for segment in segments))
        hidden: list[Tensor] = []  # [S, H] of each segment
        for row, segments in enumerate(segments_by_row):
            for segment in segments:
                hidden.append(self.encode_segment(segment.ids_S, cache, row, image_SH=segment.image_SH))

        hidden_BSH = hidden[0].new_zeros(*ids_BS.shape, self.config.hidden_size)
        hidden_BSH[is_text_BS] = torch.cat(hidden)
        return hidden_BSH

    def denoise(self, canvas_BC: Tensor, cache: KVCache, previous_logits: Tensor | None = None) -> Tensor:
        """Return the logits [B, C, V] of canvases that follow the text in the cache; the cache is only read.

        Logits are float32, after the softcap. `previous_logits` are those of the previous step, divided by its
        temperature; None on the first step.
        """
        self._check_batch(canvas_BC, cache)
        logits = []
        for row, ids_C in enumerate(canvas_BC):
            soft_CH = None if previous_logits is None else self.soft_embedding(previous_logits[row])
            hidden_CH = self.denoise_canvas(ids_C, cache, row, soft_CH=soft_CH)
            logits.append(self.logits(hidden_CH))
        return torch.stack(logits)

    def see(self, pixels_PI: Tensor, rows: int, columns: int) -> Tensor:
        """Return the embeddings [S, H] of an image: `pixels_PI` are its patches, row by row, from 0 to 255."""
        if self.vision is None:
            raise InputError("the model has no vision tower: load a checkpoint that has one, without text_only")
        return self.vision(pixels_PI.to(self.device), rows, columns, self.dtype)

    def new_cache(self, batch_size: int, max_length: int) -> KVCache:
        return KVCache(self.config, batch_size, max_length, self.device, self.dtype)

    # --- one sequence through the network -----------------------------------------------------------------------

    def encode_segment(
        self,
        ids_S: Tensor,
        cache: KVCache,
        row: int,
        *,
        image_SH: Tensor | None = None,
        attend: AttendWithCache = attend_with_cache,
    ) -> Tensor:
        """Append a segment to a row of the cache and return its hidden states [S, H].

        A segment is a run of text, or one image: `image_SH` are then its embeddings, and its ids are not used.
        """
        x_SH = self.embed(ids_S, self.encoder) if image_SH is None else image_SH
        sees_later = image_SH is not None and self.config.bidirectional_images  # tokens of an image attend to all of it
        hidden_SH = self._after_cached_text(self.encoder, x_SH, cache, row, attend, causal=True, block=sees_later)
        cache.lengths[row] += len(ids_S)
        return hidden_SH

    def denoise_canvas(
        self,
        ids_C: Tensor,
        cache: KVCache,
        row: int,
        *,
        soft_CH: Tensor | None = None,
        attend: AttendWithCache = attend_with_cache,
    ) -> Tensor:
        """Return the hidden states [C, H] of a canvas that follows a row of the cache, which is only read.

        `soft_CH` is the self-conditioning: the expected embedding of every position under the prediction of the
        previous step. None on the first step.
        """
        x_CH = self.embed(ids_C, self.decoder)
        x_CH = self.self_conditioning.condition(x_CH, torch.zeros_like(x_CH) if soft_CH is None else soft_CH)
        return self._after_cached_text(self.decoder, x_CH, cache, row, attend, causal=False)

    def _after_cached_text(
        self,
        stack: "Stack",
        x_TH: Tensor,
        cache: KVCache,
        row: int,
        attend: AttendWithCache,
        causal: bool,
        block: bool = False,
    ) -> Tensor:
        """Apply a stack to embeddings whose positions follow the text in a row of the cache."""
        start = cache.lengths[row]
        position_T = torch.arange(start, start + len(x_TH), device=x_TH.device)
        # A layer calls its function with queries, keys and values; all else is known here.
        attend_by_layer = [
            partial(attend, cache=layer_cache, row=row, start=start, causal=causal, block=block)
            for layer_cache in cache.layers
        ]
        hidden_TH, _ = stack(x_TH, position_T, attend_by_layer)
        return hidden_TH

    # --- tokens to embeddings, hidden states to logits ----------------------------------------------------------

    def embed(self, ids: Tensor, stack: "Stack") -> Tensor:
        return stack.embed_tokens(ids) * self.embed_scale

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of hidden states [..., H], in float32 and after the softcap."""
        return softcapped_logits(hidden, self.head, self.config.final_logit_softcapping)

    def soft_embedding(self, logits_TV: Tensor) -> Tensor:
        """Return the expected embedding [T, H] under the predictions, at the scale of embedded tokens."""
        return self.expected_embedding(logits_TV.softmax(-1, dtype=torch.float32))

    def expected_embedding(self, probability_TV: Tensor) -> Tensor:
        return torch.matmul(probability_TV.to(self.dtype), self.decoder.embed_tokens.weight) * self.embed_scale

    def conditioning(self, token_T: Tensor, soft_TH: Tensor) -> Tensor:
        """Return the soft embeddings, replaced by the embedding of the token wherever one is fixed (not negative)."""
        certain_TH = self.embed(token_T.clamp(min=0), self.decoder)
        return torch.where((token_T >= 0)[:, None], certain_TH, soft_TH)

    @property
    def head(self) -> nn.Parameter:
        return self.decoder.embed_tokens.weight if self.lm_head is None else self.lm_head

    @property
    def embed_scale(self) -> float:
        # Rounded to the working dtype, as in the reference: sqrt(2816) is 53.0 in bfloat16.
        return _rounded(self.config.hidden_size**0.5, self.dtype)

    # --- properties and checks ----------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.decoder.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.norm.weight.dtype

    @property
    def is_tied(self) -> bool:
        """Whether encoder and decoder are the same layers."""
        return self.encoder.layers is self.decoder.layers

    def _check_batch(self, ids: Tensor, cache: KVCache) -> None:
        if ids.ndim != 2 or len(ids) > len(cache.lengths) or not ids.shape[1]:
            raise InputError(f"ids must be [at most {len(cache.lengths)}, at least 1], got {list(ids.shape)}")


class Stack(nn.Module):
    """Embedding, layers and final norm of the encoder or the decoder.

    A stack may use the weights of the stack `shared`, except for the output scale of each layer, which is its own.
    """

    embed_tokens: Embedding
    layers: nn.ModuleList
    norm: RMSNorm

    def __init__(self, config: Config, shared: "Stack | None" = None) -> None:
        super().__init__()
        self.shapes = config.layers
        self.embed_tokens = shared.embed_tokens if shared else Embedding(config)
        self.layers = shared.layers if shared else nn.ModuleList(Layer(config, shape) for shape in config.layers)
        self.norm = shared.norm if shared else RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layer_scalars = nn.ParameterList(nn.Parameter(torch.empty(1), requires_grad=False) for _ in config.layers)

    def forward(
        self,
        x_TH: Tensor,
        position_T: Tensor,
        attend_by_layer: Sequence[Attend],
        scalars: Sequence[Tensor] | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """Apply the layers and the final norm; return hidden states and each router's scores [T, E].

        `scalars` are the output scales of the layers, by default those of this stack. With `recompute`, activations are
        not kept for the backward pass but computed again in it.
        """
        if scalars is None:
            scalars = [scalar.to(x_TH.dtype) for scalar in self.layer_scalars]
        rotations = {
            shape: rotation(position_T, frequencies(shape, x_TH.device), x_TH.dtype) for shape in set(self.shapes)
        }
        scores = []
        for layer, shape, attend, scalar in zip(self.layers, self.shapes, attend_by_layer, scalars, strict=True):
            inputs = (x_TH, attend, rotations[shape], scalar)
            x_TH, scores_TE = checkpoint(layer, *inputs, use_reentrant=False) if recompute else layer(*inputs)
            scores.append(scores_TE)
        return self.norm(x_TH), scores


class Layer(nn.Module):
    """Attention, then a dense MLP and a mixture of experts next to each other.

    Modules have the names of the checkpoint: norms with `_1` belong to the dense MLP, those with `_2` to the experts.
    """

    def __init__(self, config: Config, shape: LayerShape) -> None:
        super().__init__()
        hidden = config.hidden_size
        eps = config.rms_norm_eps
        self.self_attn = Attention(config, shape)
        self.mlp = GatedMLP(config)
        self.router = Router(config)
        self.experts = Experts(config)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.pre_feedforward_layernorm = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm_1 = RMSNorm(hidden, eps)
        self.pre_feedforward_layernorm_2 = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm_2 = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm = RMSNorm(hidden, eps)

    def forward(self, x_TH: Tensor, attend: Attend, rotation: Rotation, scalar: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden states [T, H] after this layer, and the router's scores [T, E].

        `scalar` is the layer's output scale, [1] or [T, 1]: it differs between encoder and decoder.
        """
        # Attention, between two norms.
        attended_TH = self.self_attn(self.input_layernorm(x_TH), attend, rotation)
        x_TH = x_TH + self.post_attention_layernorm(attended_TH)

        # The dense MLP and the experts read the same input, each between two norms of its own. Their outputs are added.
        # The order of these lines is the order in which the backward pass adds the gradients of x.
        index_TK, weight_TK, scores_TE = self.router(x_TH)
        dense_TH = self.mlp(self.pre_feedforward_layernorm(x_TH))
        sparse_TH = self.experts(self.pre_feedforward_layernorm_2(x_TH), index_TK, weight_TK)
        both_TH = self.post_feedforward_layernorm_1(dense_TH) + self.post_feedforward_layernorm_2(sparse_TH)
        x_TH = x_TH + self.post_feedforward_layernorm(both_TH)
        return x_TH * scalar, scores_TE


class Attention(nn.Module):
    """Attention with grouped queries. The caller passes the function that decides which tokens attend to which."""

    def __init__(self, config: Config, shape: LayerShape) -> None:
        super().__init__()
        self.dim = shape.head_dim
        self.eps = config.rms_norm_eps
        query_size = config.num_attention_heads * shape.head_dim
        key_size = shape.kv_heads * shape.head_dim
        self.q_proj = Linear(config.hidden_size, query_size)
        self.k_proj = Linear(config.hidden_size, key_size)
        self.v_proj = Linear(config.hidden_size, key_size) if shape.sliding else None
        self.o_proj = Linear(query_size, config.hidden_size)
        self.q_norm = RMSNorm(shape.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, config.rms_norm_eps)

    def forward(self, x_TH: Tensor, attend: Attend, rotation: Rotation) -> Tensor:
        q_TND = self.q_proj(x_TH).unflatten(-1, (-1, self.dim))  # [T, H] -> [T, N * D] -> [T, N, D]
        k_TMD = self.k_proj(x_TH).unflatten(-1, (-1, self.dim))
        # In a global layer key and value are one projection; only norm and rotation differ.
        v_TMD = k_TMD if self.v_proj is None else self.v_proj(x_TH).unflatten(-1, (-1, self.dim))

        q_TND = rotate(self.q_norm(q_TND), *rotation)
        k_TMD = rotate(self.k_norm(k_TMD), *rotation)
        v_TMD = rms_norm(v_TMD, None, self.eps)
        out_TND = attend(q_TND, k_TMD, v_TMD)
        return self.o_proj(out_TND.flatten(1))  # [T, N, D] -> [T, N * D] -> [T, H]


def softcapped_logits(hidden: Tensor, head_VH: Tensor, softcap: float) -> Tensor:
    return softcap * torch.tanh(F.linear(hidden, head_VH).float() / softcap)


def _rounded(value: float, dtype: torch.dtype) -> float:
    """Return a number as a dtype stores it, without a tensor, so that torch.compile sees a constant."""
    mantissa, exponent = math.frexp(value)
    steps = 2 / torch.finfo(dtype).eps
    return math.ldexp(round(mantissa * steps) / steps, exponent)
