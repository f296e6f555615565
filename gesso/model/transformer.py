"""DiffusionGemma: one transformer used two ways.

As a causal *encoder* it reads text and appends to the cache; as a bidirectional *decoder* it reads the cache and
denoises a canvas. The weights are the same (unless a checkpoint unties them); attention pattern, self-conditioning and
one scalar a layer differ. Tokens of several sequences, text and canvases alike, run through it in one pass.

B batch, S text, C canvas, T tokens of all segments, H hidden, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor, nn

from gesso import ops
from gesso.errors import InputError
from gesso.model.attention import Attention, Rotation
from gesso.model.cache import KVCache
from gesso.model.config import Config, LayerShape
from gesso.model.experts import Experts, Router
from gesso.model.parts import Embedding, GatedMLP, RMSNorm, SelfConditioning
from gesso.ops import Segment


class Layer(nn.Module):
    def __init__(self, config: Config, shape: LayerShape) -> None:
        super().__init__()

        def norm() -> RMSNorm:
            return RMSNorm(config.hidden_size, config.rms_norm_eps)

        self.eps = config.rms_norm_eps
        self.self_attn = Attention(config, shape)
        self.mlp = GatedMLP(config)
        self.router = Router(config)
        self.experts = Experts(config)
        self.input_layernorm = norm()
        self.post_attention_layernorm = norm()
        self.pre_feedforward_layernorm = norm()
        self.post_feedforward_layernorm_1 = norm()
        self.pre_feedforward_layernorm_2 = norm()
        self.post_feedforward_layernorm_2 = norm()
        self.post_feedforward_layernorm = norm()

    @property
    def first(self) -> ops.Then:
        return self.input_layernorm.then(self.self_attn.wants)

    def forward(
        self,
        x_TH: Tensor,
        normed: ops.Rows | None,
        lengths: Sequence[int],
        attend: ops.Attend,
        rotation: Rotation,
        scalar_T1: Tensor,
        then: ops.Then | None,
    ) -> tuple[Tensor, ops.Rows | None, Tensor]:
        """The tokens one layer on, what the next norm makes of them, and the router's scores [T, E].

        `normed`: what this layer's first norm makes of its tokens, if the layer before has said so; `then`: which norm
        comes next, if this one is to say.
        """
        if normed is None:
            normed = self.input_layernorm.before(self.self_attn, x_TH)
        attended_TH = self.self_attn(normed, lengths, attend, rotation)
        # Dense MLP, experts and router see the same tokens, each under a norm of its own.
        x_TH, (for_dense, for_sparse, for_router) = ops.add_norms(
            x_TH,
            attended_TH,
            self.post_attention_layernorm.weight,
            (
                self.pre_feedforward_layernorm.then(self.mlp.wants),
                self.pre_feedforward_layernorm_2.then(self.experts.wants),
            ),
            self.router.scale,
            self.router.root,
            self.eps,
        )
        index_TK, weight_TK, scores_TE = self.router(for_router, lengths)
        # Not sooner: it would take the place of the router, which the experts wait for.
        with ops.beside(for_dense, worth=self.experts.wait_for_memory) as beside:
            dense_TH = self.mlp(for_dense, lengths)
        sparse_TH = self.experts(for_sparse, index_TK, weight_TK, lengths)
        beside.join()
        norms = self.post_feedforward_layernorm_1, self.post_feedforward_layernorm_2, self.post_feedforward_layernorm
        weights = [norm.weight for norm in norms]
        return *ops.join(x_TH, dense_TH, sparse_TH, weights, scalar_T1, self.eps, then), scores_TE


class Stack(nn.Module):
    """Embedding, layers and final norm. `shared` reuses another stack's, all but the scalars: those are never tied."""

    embed_tokens: Embedding
    layers: nn.ModuleList
    norm: RMSNorm

    def __init__(self, config: Config, shared: "Stack | None" = None) -> None:
        super().__init__()
        self.embed_tokens = shared.embed_tokens if shared else Embedding(config)
        self.layers = shared.layers if shared else nn.ModuleList(Layer(config, shape) for shape in config.layers)
        self.norm = shared.norm if shared else RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layer_scalars = nn.ParameterList(nn.Parameter(torch.empty(1), requires_grad=False) for _ in config.layers)


@dataclass(frozen=True)
class Piece:
    """Tokens for one cache row: text to encode, or a canvas to denoise with the last step's soft embedding."""

    row: int
    ids_S: Tensor
    causal: bool
    soft_SH: Tensor | None = None


class Plan:
    """Where the pieces of a pass stand and what they see, as tensors on the device."""

    def __init__(self, segments: Sequence[Segment], cache: KVCache) -> None:
        self.segments, self.version = segments, cache.version
        self.lengths = [segment.length for segment in segments]
        self.position_T = _positions(segments).to(cache.device)
        causal = [torch.full((segment.length,), segment.causal) for segment in segments]
        self.causal_T = torch.cat(causal).to(cache.device)
        self.attends = ops.attends(cache.layers, segments)

    def move(self, segments: Sequence[Segment], cache: KVCache) -> None:
        """The same pieces elsewhere: in the very tensors that a captured graph reads."""
        rows = [segment.row for segment in segments]
        same_rows = self.version == cache.version and rows == [segment.row for segment in self.segments]
        if same_rows and segments == self.segments:
            return
        self.position_T.copy_(ops.send(_positions(segments), cache.device))
        ops.move(self.attends, cache.layers, segments, same_rows)
        self.segments, self.version = segments, cache.version


def _positions(segments: Sequence[Segment]) -> Tensor:
    return torch.cat([torch.arange(s.start, s.start + s.length) for s in segments])


class DiffusionGemma(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.decoder = Stack(config)
        tied = config.tie_word_embeddings
        self.encoder = Stack(config, shared=self.decoder if tied else None)
        self.self_conditioning = SelfConditioning(config)
        self.lm_head = None if tied else nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))

    # --- the two uses -------------------------------------------------------------------------------------------

    def encode(self, ids_BS: Tensor, cache: KVCache, padding: Tensor | None = None) -> Tensor:
        """Append text to the cache and return its hidden states [B, S, H].

        `padding` [B, S] marks with True what is not text: it is neither encoded nor counted in positions, wherever it
        stands, and its hidden states are zeros.
        """
        self._check_batch(ids_BS, cache)
        text_BS = torch.ones_like(ids_BS, dtype=torch.bool) if padding is None else ~padding
        pieces = [Piece(row, ids_BS[row][text_BS[row]], causal=True) for row in range(len(ids_BS))]
        for piece in pieces:
            cache.reserve(piece.row, len(piece.ids_S))
        if not text_BS.any():
            raise InputError("nothing to encode: every token is marked as padding")
        outputs = self.run([piece for piece in pieces if len(piece.ids_S)], cache)
        hidden_BSH = outputs[0].new_zeros(*ids_BS.shape, self.config.hidden_size)
        hidden_BSH[text_BS] = torch.cat(outputs)
        return hidden_BSH

    def denoise(self, canvas_BC: Tensor, cache: KVCache, previous_logits: Tensor | None = None) -> Tensor:
        """Logits [B, C, V] in float32, after the softcap, of a canvas after each row's text; the cache is only read.

        `previous_logits` are the previous step's, divided by its temperature; None on the first step.
        """
        self._check_batch(canvas_BC, cache)
        soft_BCH: Sequence[Tensor | None] = [None] * len(canvas_BC)
        if previous_logits is not None:
            soft_BCH = [self.soft_embedding(logits_CV) for logits_CV in previous_logits]
        pieces = [Piece(row, ids_C, causal=False, soft_SH=soft_BCH[row]) for row, ids_C in enumerate(canvas_BC)]
        return torch.stack([self.logits(hidden_CH) for hidden_CH in self.run(pieces, cache)])

    def new_cache(self, batch_size: int, max_length: int) -> KVCache:
        return KVCache(self.config, batch_size, max_length, self.device, self.dtype)

    # --- one pass over pieces of any kind -----------------------------------------------------------------------

    def run(self, pieces: Sequence[Piece], cache: KVCache) -> list[Tensor]:
        """Hidden states of each piece, in order. A canvas sees the text that comes before it in the same call."""
        segments = self.segments([(piece.row, len(piece.ids_S), piece.causal) for piece in pieces], cache)
        if self.one_network:
            hidden = self.flow(Plan(segments, cache), pieces, self.decoder)
        else:  # untied: two networks, the text first, since canvases read what it writes
            hidden = [torch.empty(0)] * len(pieces)
            for causal, stack in ((True, self.encoder), (False, self.decoder)):
                chosen = [i for i, piece in enumerate(pieces) if piece.causal is causal]
                if chosen:
                    plan = Plan([segments[i] for i in chosen], cache)
                    outputs = self.flow(plan, [pieces[i] for i in chosen], stack)
                    for i, output in zip(chosen, outputs, strict=True):
                        hidden[i] = output
        self.note(segments, cache)
        return hidden

    @property
    def one_network(self) -> bool:
        return self.encoder.layers is self.decoder.layers

    @property
    def capturable(self) -> bool:
        """Whether a pass asks nothing of the host on its way, so that it can be captured in a graph."""
        experts = [module for module in self.decoder.modules() if isinstance(module, Experts)]
        return self.one_network and all(each.stay_on_device(self.dtype) for each in experts)

    def segments(self, pieces: Sequence[tuple[int, int, bool]], cache: KVCache) -> list[Segment]:
        """Where pieces of these rows and lengths will stand, texts (True) one behind the other."""
        segments, lengths = [], list(cache.lengths)
        for row, length, causal in pieces:
            segments.append(Segment(row, lengths[row], length, causal))
            lengths[row] += length if causal else 0
        return segments

    def note(self, segments: Sequence[Segment], cache: KVCache) -> None:
        """The text of these segments is in the cache now."""
        for segment in segments:
            cache.lengths[segment.row] += segment.length if segment.causal else 0

    def flow(self, plan: "Plan", pieces: Sequence[Piece], stack: Stack) -> list[Tensor]:
        """Pieces through the network as planned. From here on all is on the device: this can be captured in a graph."""
        x_TH = torch.cat([self._embed(piece, stack) for piece in pieces])
        out_TH, _ = self.through(stack, x_TH, plan.lengths, plan.position_T, plan.causal_T, plan.attends)
        return list(out_TH.split(plan.lengths))

    def through(
        self,
        stack: Stack,
        x_TH: Tensor,
        lengths: Sequence[int],
        position_T: Tensor,
        causal_T: Tensor,
        attends: Sequence[ops.Attend],
        call: Callable[..., tuple[Tensor, ops.Rows | None, Tensor]] = nn.Module.__call__,
        apart: bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """The layers and the final norm, and each router's scores [T, E].

        `call` runs a layer; training puts activation checkpointing there. Unless they are `apart`, a layer takes the
        norm that follows along; if so, it touches no weights but its own, which may be sharded.
        """
        rotations = {
            shape: ops.rotation(position_T, _frequencies(shape, self.device), x_TH.dtype, lengths)
            for shape in set(self.config.layers)
        }
        encoder_L1, decoder_L1 = (torch.stack(tuple(s.layer_scalars)) for s in (self.encoder, self.decoder))
        scalars_LT1 = torch.where(causal_T, encoder_L1, decoder_L1).to(x_TH.dtype)[..., None]
        thens: list[ops.Then | None] = [None] * len(stack.layers)
        if not apart:
            thens = [*(cast(Layer, layer).first for layer in stack.layers[1:]), stack.norm.then(None)]
        routed, normed = [], None
        for layer, attend, shape, scalar_T1, then in zip(
            stack.layers, attends, self.config.layers, scalars_LT1, thens, strict=True
        ):
            x_TH, normed, scores_TE = call(layer, x_TH, normed, lengths, attend, rotations[shape], scalar_T1, then)
            routed.append(scores_TE)
        return normed if isinstance(normed, Tensor) else stack.norm(x_TH), routed

    def _embed(self, piece: Piece, stack: Stack) -> Tensor:
        embedded_SH = stack.embed_tokens(piece.ids_S, self.dtype) * self.embed_scale
        if piece.causal:
            return embedded_SH
        soft_SH = torch.zeros_like(embedded_SH) if piece.soft_SH is None else piece.soft_SH
        return self.self_conditioning.condition(embedded_SH, soft_SH, [len(piece.ids_S)])

    # --- the vocabulary -----------------------------------------------------------------------------------------

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., V] of hidden states [..., H]."""
        softcap = self.config.final_logit_softcapping
        return ops.softcapped_logits(hidden.flatten(0, -2), self.head, softcap).unflatten(0, hidden.shape[:-1])

    def soft_embedding(self, logits_TV: Tensor) -> Tensor:
        return ops.soft_embedding(logits_TV, self.decoder.embed_tokens.weight, self.embed_scale, self.dtype)

    def conditioning(self, token_T: Tensor, soft_TH: Tensor) -> Tensor:
        """The soft embeddings, but where a token is certain (not negative), those of that token."""
        certain_TH = self.decoder.embed_tokens(token_T.clamp(min=0), self.dtype) * self.embed_scale
        return torch.where((token_T >= 0)[:, None], certain_TH, soft_TH)

    @property
    def head(self) -> ops.Weight:
        return self.decoder.embed_tokens.weight if self.lm_head is None else self.lm_head

    @property
    def embed_scale(self) -> float:
        # Rounded to the working dtype, as the reference does: sqrt(2816) is 53.0 in bfloat16.
        return torch.tensor(self.config.hidden_size**0.5, dtype=self.dtype).item()

    # --- small things -------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.decoder.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.norm.weight.dtype

    def _check_batch(self, ids: Tensor, cache: KVCache) -> None:
        if ids.ndim != 2 or len(ids) > len(cache.lengths) or not ids.shape[1]:
            raise InputError(f"ids must be [at most {len(cache.lengths)}, at least 1], got {list(ids.shape)}")


@lru_cache
def _frequencies(shape: LayerShape, device: torch.device) -> Tensor:
    rope = shape.rope
    return ops.inverse_frequencies(shape.head_dim, rope.theta, rope.fraction, rope.proportional).to(device)
