"""The factors of all attached adapters in the form that the kernels read, in tensors that keep their addresses.

Each adapter has a slot. Every launch whose weights some adapter changes has two tensors with a place for each slot. A
new adapter is copied into a free slot, and captured passes stay valid: which slot a token has is data. Only if there
are too few slots, a larger rank, or an adapter changes other weights, tensors are made anew and captured passes must be
dropped.

Tokens in one batch may have different adapters, so factors are not merged into the weights.

S slots, E experts, J matrices of a launch, L rank, C = J L inner values of a launch, I inputs, O outputs of all
matrices of a launch.
"""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gesso.adapters.lora import AdaptedExperts, AdaptedLinear, Adapters, Lora
from gesso.adapters.sites import attached
from gesso.backends.cuda.activations import alike, matrix
from gesso.backends.cuda.experts import kernels_fit
from gesso.backends.cuda.kernels.experts_four_bit import depth
from gesso.backends.cuda.kernels.four_bit import FOUR_BIT, interleaved
from gesso.backends.cuda.pass_adapters import Pair
from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.errors import InputError
from gesso.model.few_experts import runs_all
from gesso.model.modules import Linear
from gesso.model.transformer import DiffusionGemma, Layer

MIN_RANK = 16  # inputs of the smallest product of the tensor cores


@dataclass(frozen=True)
class Site:
    """The weights that one launch multiplies.

    Kinds: "dense", up to three matrices; "experts", one matrix per expert, for sorted rows; "fan out" and "fan in", the
    two matrices of experts that all run, as one wide matrix each. There the factors of the experts are blocks on the
    diagonal of B or of A.
    """

    kind: Literal["dense", "experts", "fan out", "fan in"]
    adapters: tuple[Adapters, ...]
    weights: tuple[Weight, ...]
    order_I: Tensor | None = None  # the columns of A, where rows are interleaved

    @property
    def key(self) -> Adapters:
        return self.adapters[0]

    def loras(self, name: str) -> list[Lora]:
        """Return the changes of an adapter to these weights."""
        return [lora for each in self.adapters if (lora := each.get(name)) is not None]

    def empty(self, slots: int, rank: int, dtype: torch.dtype) -> Pair:
        """Return zeros for these slots."""
        *_, outputs, inputs = self.weights[0].shape
        experts = 1 if self.kind == "dense" else len(self.weights[0])
        shapes = {
            "dense": ((1, len(self.weights) * rank, inputs), (1, sum(map(len, self.weights)), rank)),
            "experts": ((experts, rank, inputs), (experts, outputs, rank)),
            "fan out": ((1, experts * rank, inputs), (1, experts * outputs, experts * rank)),
            "fan in": ((1, experts * rank, experts * inputs), (1, outputs, experts * rank)),
        }
        device = self.weights[0].device
        a_SECI, b_SEOL = (torch.zeros(slots, *shape, dtype=dtype, device=device) for shape in shapes[self.kind])
        return a_SECI, b_SEOL

    def write(self, a_ECI: Tensor, b_EOL: Tensor, name: str, rank: int) -> None:
        """Fill one slot with an adapter. Weights that it does not change get zeros."""
        a_ECI.zero_(), b_EOL.zero_()
        line = 0
        for place, (adapters, weight) in enumerate(zip(self.adapters, self.weights, strict=True)):
            if (lora := adapters.get(name)) is not None:
                lora_rank = lora.rank
                a = lora.A.detach()
                b = lora.B.detach() * lora.scale
                experts = len(weight)
                if self.order_I is not None:
                    a = a[..., self.order_I]
                if self.kind == "dense":
                    a_ECI[0, place * rank : place * rank + lora_rank] = a
                    b_EOL[0, line : line + len(weight), :lora_rank] = b
                elif self.kind == "experts":
                    a_ECI[:, :lora_rank] = a
                    b_EOL[:, :, :lora_rank] = b
                elif self.kind == "fan out":
                    a_ECI.view(experts, rank, -1)[:, :lora_rank] = a
                    _diagonal(b_EOL.view(experts, -1, experts, rank))[..., :lora_rank] = b
                else:
                    _diagonal(a_ECI.view(experts, rank, experts, -1))[:, :lora_rank] = a
                    b_EOL.view(-1, experts, rank)[..., :lora_rank] = b.transpose(0, 1)
            line += len(weight)


def _diagonal(blocks: Tensor) -> Tensor:
    """Return the blocks [E, M, N] on the diagonal of [E, M, E, N], as a view."""
    return blocks.diagonal(dim1=0, dim2=2).movedim(-1, 0)


class AdapterBank:
    """The adapters of a model on the device. Without any it is empty, and passes launch nothing for it."""

    def __init__(self, model: DiffusionGemma, together: bool = True) -> None:
        """Copy the adapters of a model. `together`: matrices with the same input are multiplied in one launch."""
        self.together = together
        self.pairs: dict[Adapters, Pair] = {}
        self.slots: dict[str, int] = {}
        self.count = self.rank = 0  # slots, and inner values of each
        self.is_tied = model.is_tied
        self.copied: dict[str, list[weakref.ref[Lora]]] = {}
        self.update(model)

    def slot(self, name: str | None) -> int:
        """Return the slot of an adapter; -1: the base model."""
        if name is None:
            return -1
        if name not in self.slots:
            raise InputError(
                f"the backend has no adapter called {name!r}; it has {', '.join(self.slots) or 'none'}. Call "
                "adapters_changed() after attaching one"
            )
        if any(lora() is None for lora in self.copied[name]):
            raise InputError(f"adapter {name!r} was merged or removed since the model was loaded; load it again")
        return self.slots[name]

    @torch.no_grad()
    def update(self, model: DiffusionGemma, changed: bool = False) -> bool:
        """Take over the attached adapters, and return whether captured passes have become invalid.

        Adapters that are already here are copied again only if they are other modules now, or with `changed`. After an
        error, such as lack of memory, the bank is empty, and captured passes are invalid.
        """
        try:
            return self._update(model, changed)
        except Exception:
            self._clear()
            raise

    def _clear(self) -> None:
        """Forget all adapters. Captured passes that read them become invalid."""
        self.pairs = {}
        self.slots = {}
        self.copied = {}
        self.count = 0
        self.rank = 0

    def divide(self, model: DiffusionGemma) -> None:
        """Copy the adapters again, for matrices that are multiplied one by one."""
        self.together = False
        self._clear()
        self.update(model)

    def _update(self, model: DiffusionGemma, changed: bool) -> bool:
        names, before = attached(model), self._layout()
        # Launches that no adapter changes any more keep their tensors, because captured passes read them.
        sites = [
            site for site in sites_of(model, self.together) if site.key in self.pairs or any(map(site.loras, names))
        ]
        rank = max((lora.rank for site in sites for name in names for lora in site.loras(name)), default=0)
        if rank > self.rank or len(names) > self.count or not names:
            most_names = max(self.count, _power(len(names))) if names else 0
            highest_rank = max(self.rank, _power(rank), MIN_RANK) if names else 0
            self._clear()
            self.count = most_names
            self.rank = highest_rank
        for site in sites if names else ():
            if site.key not in self.pairs:
                self.pairs[site.key] = site.empty(self.count, self.rank, model.dtype)
        self.slots = {name: slot for name, slot in self.slots.items() if name in names}
        for name in names:
            loras = [lora for site in sites for lora in site.loras(name)]
            if changed or name not in self.slots or not _same(self.copied[name], loras):
                free = (slot for slot in range(self.count) if slot not in self.slots.values())
                slot = self.slots[name] = self.slots[name] if name in self.slots else next(free)
                for site in sites:
                    a_SECI, b_SEOL = self.pairs[site.key]
                    site.write(a_SECI[slot], b_SEOL[slot], name, self.rank)
                self.copied[name] = [weakref.ref(lora) for lora in loras]
        self.is_tied = model.is_tied
        return self._layout() != before

    def _layout(self) -> tuple[object, ...]:
        """Return everything that a captured pass fixes."""
        return self.is_tied, self.count, self.rank, frozenset(self.pairs)


def _power(number: int) -> int:
    """Return the smallest power of two that is not less than a number."""
    return 1 << max(0, number - 1).bit_length()


def _same(known: Sequence[weakref.ref[Lora]], loras: Sequence[Lora]) -> bool:
    return len(known) == len(loras) and all(one() is other for one, other in zip(known, loras, strict=True))


# --- the launches of a model ------------------------------------------------------------------------------------------


def sites_of(model: DiffusionGemma, together: bool = True) -> Iterator[Site]:
    """Return the launches of a model that can have adapters. Tied encoder and decoder have the same.

    `together`: matrices with the same input share a launch if one kernel can multiply by all of them.
    """
    for stack in (model.decoder,) if model.is_tied else (model.decoder, model.encoder):
        for layer in stack.layers:
            assert isinstance(layer, Layer)
            attention, mlp = layer.self_attn, layer.mlp
            yield from _dense(attention.q_proj, attention.k_proj, attention.v_proj, together=together)
            yield from _dense(attention.o_proj, together=together)
            yield from _dense(mlp.gate_proj, mlp.up_proj, together=together)
            yield from _dense(mlp.down_proj, together=together)
            yield from _dense(layer.router.proj, together=together)
            yield from _experts(layer)
    module = model.self_conditioning
    yield from _dense(module.gate_proj, module.up_proj, together=together)
    yield from _dense(module.down_proj, together=together)


def _dense(*linears: Linear | None, together: bool = True) -> Iterator[Site]:
    modules = [linear for linear in linears if isinstance(linear, AdaptedLinear)]
    share_launch = together and alike([matrix(module) for module in modules])
    for group in [modules] if share_launch else [[module] for module in modules]:
        yield Site("dense", tuple(m.weight_adapters for m in group), tuple(m.weight for m in group))


def _experts(layer: Layer) -> Iterator[Site]:
    module, k = layer.experts, layer.router.k
    if not isinstance(module, AdaptedExperts):
        return
    first, second = module.gate_up_proj, module.down_proj
    if kernels_fit(module, k):
        yield Site("experts", (module.gate_up_proj_adapters,), (first,), _order(first, "up"))
        yield Site("experts", (module.down_proj_adapters,), (second,), _order(second, "down"))
    elif runs_all(len(first), k):
        yield Site("fan out", (module.gate_up_proj_adapters,), (first,))
        yield Site("fan in", (module.down_proj_adapters,), (second,))
    # Otherwise the plain version runs, with its own adapters.


def _order(weight: Weight, product: str) -> Tensor | None:
    """Return the order in which the rows of a product are interleaved, or None."""
    if not isinstance(weight, Packed) or weight.format not in FOUR_BIT:
        return None
    column = torch.arange(weight.shape[-1], device=weight.device)
    return interleaved(column[None], depth(product, weight.format))[0]
