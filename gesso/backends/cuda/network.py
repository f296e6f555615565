"""The network with fused kernels: all pieces of a pass together, with the weights of the plain model.

`Layer` in `gesso/model/transformer.py` is the specification of `run_layer`. Norms are fused into the kernels before
them, which also convert their output to the activation format of the next product.

T tokens of all pieces, S tokens of one piece, H hidden, D head dim, L layers.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import cast

import torch
from torch import Tensor

from gesso.adapters.lora import Adapters
from gesso.backends.base import Piece
from gesso.backends.cuda import row_operations
from gesso.backends.cuda.activations import (
    AdaptedMatrix,
    ExpertOutputs,
    NextNorm,
    Rows,
    SplitK,
    activation_format,
    matrix,
)
from gesso.backends.cuda.experts import choose, experts, input_format, is_memory_bound, kernels_fit
from gesso.backends.cuda.families import ALL, Kernels, launching
from gesso.backends.cuda.kernels import attention, products
from gesso.backends.cuda.kernels.attention import Attend
from gesso.backends.cuda.kernels.segments import Segment, move
from gesso.backends.cuda.linear import linear_split_k, linears
from gesso.backends.cuda.linear import mlp as run_mlp
from gesso.backends.cuda.pass_adapters import NO_ADAPTERS, Pair, PassAdapters
from gesso.backends.cuda.plain_attention import plain_attends
from gesso.backends.cuda.side_stream import SideStream
from gesso.backends.cuda.streaming import ExpertStream
from gesso.diffusion.hash import send
from gesso.model.cache import KVCache
from gesso.model.modules import GatedMLP
from gesso.model.rope import Rotation, frequencies
from gesso.model.transformer import Attention, DiffusionGemma, Layer, Stack


class Plan:
    """Positions and attention of the pieces of a pass, as tensors on the device."""

    def __init__(
        self,
        segments: Sequence[Segment],
        cache: KVCache,
        lengths: Sequence[int],
        longest: int | None = None,
        adapted: bool = False,
        kernels: Kernels = ALL,
    ) -> None:
        """Plan pieces of these lengths. A piece may hold several segments, and padding.

        No segment is longer than `longest`, by default the longest piece. `adapted`: whether tokens may have adapters.
        """
        self.segments = segments
        self.version = cache.version
        self.lengths = list(lengths)
        self.position_T = _positions(segments).to(cache.device)
        causal = [torch.full((segment.size,), segment.causal) for segment in segments]
        self.causal_T = torch.cat(causal).to(cache.device)
        self.slot_T = _slots(segments).to(cache.device) if adapted else None
        self.kernels = kernels
        if kernels.run("attention"):
            self.attends = attention.attends(cache.layers, segments, longest or max(lengths))
        else:
            self.attends = plain_attends(cache, segments)
        self._scalars_LT1: Tensor | None = None

    def scalars(self, model: DiffusionGemma) -> Tensor:
        """Return the scalar of each layer for each token [L, T, 1], which are the same wherever the pieces move."""
        if self._scalars_LT1 is None:
            encoder_L1 = torch.stack(tuple(model.encoder.layer_scalars))
            decoder_L1 = torch.stack(tuple(model.decoder.layer_scalars))
            self._scalars_LT1 = torch.where(self.causal_T, encoder_L1, decoder_L1).to(model.dtype)[..., None]
        return self._scalars_LT1

    def move(self, segments: Sequence[Segment], cache: KVCache) -> None:
        """Move the pieces to other positions or rows, in the same tensors, because a captured graph reads those."""
        cache_rows = [segment.row for segment in segments]
        same_rows = self.version == cache.version and cache_rows == [segment.row for segment in self.segments]
        if same_rows and segments == self.segments:
            return
        self.position_T.copy_(send(_positions(segments), cache.device))
        if self.slot_T is not None:
            self.slot_T.copy_(send(_slots(segments), cache.device))
        move(self.attends, cache.layers, segments, same_rows)
        self.segments, self.version = segments, cache.version


def _positions(segments: Sequence[Segment]) -> Tensor:
    return torch.cat([torch.arange(s.start, s.start + s.size) for s in segments])


def _slots(segments: Sequence[Segment]) -> Tensor:
    return torch.cat([torch.full((segment.size,), segment.slot, dtype=torch.int32) for segment in segments])


def segments_of(pieces: Sequence[tuple[int, int, bool, int]], cache: KVCache) -> list[Segment]:
    """Return the positions of pieces (row, length, causal, slot). Texts of the same row follow each other."""
    segments, lengths = [], list(cache.lengths)
    for row, length, causal, slot in pieces:
        segments.append(Segment(row, lengths[row], length, causal, slot=slot))
        lengths[row] += length if causal else 0
    return segments


def note(segments: Sequence[Segment], cache: KVCache) -> None:
    """Record that the text of these segments is in the cache."""
    for segment in segments:
        cache.lengths[segment.row] += segment.length if segment.causal else 0


def flow(
    model: DiffusionGemma,
    plan: Plan,
    pieces: Sequence[Piece],
    stack: Stack,
    stream: ExpertStream,
    pairs: Mapping[Adapters, Pair],
) -> list[Tensor]:
    """Return the hidden states of each piece. Nothing is read on the host, so this can be captured in a graph.

    `pairs` are the factors of adapters.
    """
    stream.begin()
    kernels = plan.kernels
    adapters = PassAdapters(pairs, plan.slot_T, [piece.adapter for piece in pieces])
    ends = list(accumulate(plan.lengths, initial=0))
    spans = zip(pieces, pairwise(ends), strict=True)
    x_TH = joined([_embed(model, piece, stack, adapters.part(*span), kernels) for piece, span in spans])
    scalars_LT1 = plan.scalars(model)
    rotations = {
        shape: row_operations.rotation(kernels, plan.position_T, frequencies(shape, x_TH.device), x_TH.dtype)
        for shape in set(model.config.layers)
    }
    layers = [cast(Layer, layer) for layer in stack.layers]
    next_norms = [*(_first_norm(layer, kernels) for layer in layers[1:]), NextNorm(stack.norm.weight, None)]
    first = layers[0]
    norm, format = first.input_layernorm, _first_norm(first, kernels).format
    normed = row_operations.norm_for(kernels, x_TH, norm.weight, norm.eps, format)
    for index, (layer, attend, shape, scalar_T1, next_norm) in enumerate(
        zip(layers, plan.attends, model.config.layers, scalars_LT1, next_norms, strict=True)
    ):
        stream.before(index)
        x_TH, normed = run_layer(
            layer, x_TH, normed, plan.lengths, attend, rotations[shape], scalar_T1, next_norm, adapters, kernels
        )
        stream.after(index)
    assert isinstance(normed, Tensor)
    return list(normed.split(plan.lengths))


def run_layer(
    layer: Layer,
    x_TH: Tensor,
    normed: Rows,
    lengths: Sequence[int],
    attend: Attend,
    rotation: Rotation,
    scalar_T1: Tensor,
    next_norm: NextNorm,
    adapters: PassAdapters = NO_ADAPTERS,
    kernels: Kernels = ALL,
) -> tuple[Tensor, Rows]:
    """Return the hidden states after a layer, and the output of the norm that follows.

    `normed` is the output of the layer's first norm, computed by the layer before.
    """
    eps, router = layer.input_layernorm.eps, layer.router
    attended = _attention(layer.self_attn, normed, lengths, attend, rotation, adapters, kernels)
    # Dense MLP, experts and router read the same tokens, each after its own norm.
    x_TH, (for_dense, for_experts, for_router) = row_operations.add_norms(
        kernels,
        x_TH,
        attended,
        layer.post_attention_layernorm.weight,
        (
            NextNorm(layer.pre_feedforward_layernorm.weight, _gated_format(layer.mlp, kernels)),
            NextNorm(layer.pre_feedforward_layernorm_2.weight, _experts_format(layer, kernels)),
        ),
        router.scale,
        router.root,
        eps,
    )
    index_TK, weight_TK = choose(router, for_router, lengths, adapters, kernels)
    norms = layer.post_feedforward_layernorm_1, layer.post_feedforward_layernorm_2, layer.post_feedforward_layernorm
    weights = [norm.weight for norm in norms]
    both = dense_and_experts(layer, for_dense, for_experts, index_TK, adapters, kernels)
    if both is not None:
        dense_TH, outputs_RH = both
        sparse = ExpertOutputs(outputs_RH, weight_TK)
        return row_operations.join(kernels, x_TH, dense_TH, sparse, weights, scalar_T1, eps, next_norm)
    # Launch after routing: an earlier launch would delay the router, and the experts wait for it.
    with SideStream(for_dense, enabled=is_memory_bound(layer.experts)) as side:
        dense_TH = gated_mlp(layer.mlp, for_dense, lengths, adapters, kernels)
    sparse_TH = experts(layer.experts, for_experts, index_TK, weight_TK, lengths, adapters, kernels)
    side.join()
    return row_operations.join(kernels, x_TH, dense_TH, sparse_TH, weights, scalar_T1, eps, next_norm)


def dense_and_experts(
    layer: Layer, for_dense: Rows, for_experts: Rows, index_TK: Tensor | None, adapters: PassAdapters,
    kernels: Kernels = ALL,
) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    """Return the outputs of the dense MLP and the unweighted outputs of the experts from one launch, if there is one
    for these weights.
    """
    if index_TK is None:
        return None
    mlp = layer.mlp
    module = layer.experts
    dense = [matrix(linear, adapters) for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)]
    dense_factors = [adapted.factors for adapted in dense]
    expert_factors = [adapters.of(module, "gate_up_proj"), adapters.of(module, "down_proj")]
    apply = kernels.run("products") and kernels.run("experts") and kernels_fit(module, index_TK.shape[1])
    if not apply or any(factors is not None for factors in (*dense_factors, *expert_factors)):
        return None
    weights = [adapted.weight for adapted in dense]
    with launching("experts"):
        return products.dense_and_experts(
            for_experts, for_dense, index_TK, module.gate_up_proj, module.down_proj, weights
        )


def _first_norm(layer: Layer, kernels: Kernels) -> NextNorm:
    format = activation_format(_projections(layer.self_attn)) if kernels.run("products") else None
    return NextNorm(layer.input_layernorm.weight, format)


def _experts_format(layer: Layer, kernels: Kernels) -> str | None:
    return input_format(layer.experts, layer.router.k) if kernels.run("experts") else None


def _projections(module: Attention, adapters: PassAdapters = NO_ADAPTERS) -> list[AdaptedMatrix]:
    return [matrix(each, adapters) for each in (module.q_proj, module.k_proj, module.v_proj) if each]


def _attention(
    module: Attention, x: Rows, lengths: Sequence[int], attend: Attend, rotation: Rotation, adapters: PassAdapters,
    kernels: Kernels,
) -> Tensor | SplitK:  # fmt: skip
    products = linears(x, _projections(module, adapters), lengths, kernels)
    # In a global layer, key and value are one projection; only norm and rotation differ.
    q_TND, k_TMD, v_TMD = (each.unflatten(-1, (-1, module.dim)) for each in (*products, products[-1])[:3])
    q, k, v = row_operations.heads(
        kernels, q_TND, k_TMD, v_TMD, module.q_norm.weight, module.k_norm.weight, rotation, module.eps
    )
    after = matrix(module.o_proj, adapters)
    low = after.format == "fp8" and after.factors is None and kernels.run("products")
    with launching("attention"):
        attended = attend(q, k, v, low=True) if low else attend(q, k, v)
    return linear_split_k(attended.flatten(1) if isinstance(attended, Tensor) else attended, after, lengths, kernels)


def _gated_format(mlp: GatedMLP, kernels: Kernels) -> str | None:
    if not kernels.run("products"):
        return None
    return activation_format([matrix(mlp.gate_proj), matrix(mlp.up_proj)])


def gated_mlp(mlp: GatedMLP, x: Rows, lengths: Sequence[int], adapters: PassAdapters, kernels: Kernels = ALL) -> Tensor:
    gate, up, down = (matrix(each, adapters) for each in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    return run_mlp(x, gate, up, down, lengths, kernels)


def joined(parts: list[Tensor]) -> Tensor:
    """Concatenate. A single tensor is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _embed(model: DiffusionGemma, piece: Piece, stack: Stack, adapters: PassAdapters, kernels: Kernels) -> Tensor:
    if piece.image_SH is not None:
        return piece.image_SH
    if piece.causal:
        return model.embed(piece.ids_S, stack)
    module, soft_SH = model.self_conditioning, piece.soft_SH
    if soft_SH is None:
        soft_SH = piece.ids_S.new_zeros(len(piece.ids_S), model.config.hidden_size, dtype=model.dtype)
    norm, format = module.pre_norm, _gated_format(module, kernels)
    normed = row_operations.norm_for(kernels, soft_SH, norm.weight, norm.eps, format)
    signal_SH = gated_mlp(module, normed, [len(piece.ids_S)], adapters, kernels)
    table, eps = stack.embed_tokens.weight, module.pre_norm.eps
    return row_operations.conditioned(kernels, piece.ids_S, table, model.embed_scale, signal_SH, eps)
