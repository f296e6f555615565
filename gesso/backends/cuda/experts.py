"""Router and experts of a pass.

T tokens of all pieces, S tokens of one piece, H hidden, E experts, K experts per token, I expert width, R = T K pairs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gesso.backends.cuda.activations import AdaptedMatrix, ExpertOutputs, Rows, matrix
from gesso.backends.cuda.families import ALL, Kernels, launching
from gesso.backends.cuda.kernels import products, rows
from gesso.backends.cuda.kernels.four_bit import FOUR_BIT
from gesso.backends.cuda.kernels.low_rank import Factors
from gesso.backends.cuda.linear import linear, low_rank, product
from gesso.backends.cuda.pass_adapters import NO_ADAPTERS, PassAdapters, active
from gesso.checkpoint.quantize.packed import Packed
from gesso.model.experts import Experts, Router, route
from gesso.model.few_experts import runs_all
from gesso.model.modules import gated_gelu

FOUR_BIT_TILES = (128, 64)  # most inputs of a tile of four-bit weights, in the two products of an expert


def choose(
    router: Router, x_TH: Tensor, lengths: Sequence[int], adapters: PassAdapters = NO_ADAPTERS, kernels: Kernels = ALL
) -> tuple[Tensor | None, Tensor]:
    """Return the experts of normed and scaled tokens and their weights, as `route` does."""
    proj = matrix(router.proj, adapters)
    if kernels.run("rows") and isinstance(proj.weight, Tensor) and not runs_all(len(proj.weight), router.k):
        change_TE = None if proj.factors is None else low_rank(x_TH, proj.factors, lengths, kernels)
        with launching("rows"):
            return rows.route(x_TH, proj.weight, router.per_expert_scale, router.k, change_TE)
    return route(linear(x_TH, proj, lengths, kernels), router.per_expert_scale, router.k)


def experts(
    module: Experts, x_TH: Rows, index_TK: Tensor | None, weight: Tensor, lengths: Sequence[int],
    adapters: PassAdapters = NO_ADAPTERS, kernels: Kernels = ALL,
) -> Tensor | ExpertOutputs:  # fmt: skip
    """Return the output of the experts, or their unreduced outputs if the grouped kernels apply."""
    factors = adapters.of(module, "gate_up_proj"), adapters.of(module, "down_proj")
    if index_TK is not None and kernels.run("experts") and kernels_fit(module, index_TK.shape[1]):
        with launching("experts"):
            outputs_RH = products.experts(x_TH, index_TK, module.gate_up_proj, module.down_proj, *factors)
        return ExpertOutputs(outputs_RH, weight)
    assert isinstance(x_TH, Tensor)
    if index_TK is None:
        return _all(module, x_TH, weight, lengths, kernels, *factors)
    pieces = zip(*(tensor.split(list(lengths)) for tensor in (x_TH, index_TK, weight)), strict=True)
    outputs = []
    for piece, name in zip(pieces, adapters.names or [None] * len(lengths), strict=True):
        with active(module, name):
            outputs.append(module(*piece))
    return torch.cat(outputs)


def _all(
    module: Experts, x_TH: Tensor, weight_TE: Tensor, lengths: Sequence[int], kernels: Kernels,
    up_factors: Factors | None, down_factors: Factors | None,
) -> Tensor:  # fmt: skip
    """Run all experts as two products. Experts that were not chosen have a weight of zero."""
    gate_up, down = (_dense(weight, x_TH.dtype) for weight in (module.gate_up_proj, module.down_proj))
    y_TO = product(x_TH, gate_up.flatten(0, 1), lengths, kernels)
    if up_factors is not None:
        y_TO = y_TO + low_rank(x_TH, up_factors, lengths, kernels)
    y_TEI = gated_gelu(*y_TO.unflatten(1, (len(gate_up), -1)).chunk(2, -1))
    h_TI = (y_TEI * weight_TE[..., None].to(y_TEI.dtype)).flatten(1)
    y_TH = product(h_TI, down.transpose(0, 1).flatten(1), lengths, kernels)
    return y_TH if down_factors is None else y_TH + low_rank(h_TI, down_factors, lengths, kernels)


def _dense(weight: Tensor | Packed, dtype: torch.dtype) -> Tensor:
    return weight.dense(dtype) if isinstance(weight, Packed) else weight


def _matrices(module: Experts) -> tuple[AdaptedMatrix, AdaptedMatrix]:
    return AdaptedMatrix(module.gate_up_proj), AdaptedMatrix(module.down_proj)


def kernels_fit(module: Experts, k: int) -> bool:
    """Return whether the grouped kernels apply. They fetch rows of multiples of 16 bytes, and whole tiles of four-bit
    rows. The two matrices may have different formats.
    """
    matrices = _matrices(module)
    if runs_all(len(module.gate_up_proj), k):
        return False
    steps = (tile if each.format in FOUR_BIT else 16 for each, tile in zip(matrices, FOUR_BIT_TILES, strict=True))
    return all(each.weight.shape[-1] % step == 0 for each, step in zip(matrices, steps, strict=True))


def input_format(module: Experts, k: int) -> str | None:
    """Return the activation format of the experts' input: that of the first matrices."""
    return _matrices(module)[0].format if kernels_fit(module, k) else None


def stays_on_device(module: Experts, k: int) -> bool:
    """Return whether nothing is read on the host between the products. The plain version counts the tokens of each
    expert there.
    """
    return runs_all(len(module.gate_up_proj), k) or kernels_fit(module, k)


def is_memory_bound(module: Experts) -> bool:
    """Return whether the products are memory-bound. With four-bit weights, the conversion to bfloat16 bounds them. The
    first product is two thirds of the work, so its weights decide.
    """
    weight = module.gate_up_proj
    return not isinstance(weight, Packed) or weight.format not in FOUR_BIT
