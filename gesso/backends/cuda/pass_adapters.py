"""The adapters of a pass: the factors of each weight, and which adapter each token has.

S slots, E experts, C inner values, I inputs, O outputs, L rank, T tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from gesso.adapters.lora import AdaptedExperts, AdaptedLinear, Adapters
from gesso.adapters.sites import kept_active, switch
from gesso.backends.cuda.kernels.low_rank import Factors

Pair = tuple[Tensor, Tensor]  # the factors a_SECI and b_SEOL of one launch


@dataclass(frozen=True)
class PassAdapters:
    """The adapters of the tokens of a pass. `pairs` has the factors of each launch, under its first weight."""

    pairs: Mapping[Adapters, Pair] = field(default_factory=dict)
    slot_T: Tensor | None = None
    names: Sequence[str | None] = ()  # of the pieces

    def of(self, module: nn.Module, weight: str = "weight") -> Factors | None:
        """Return the factors for the launch whose first weight this is, or None."""
        if self.slot_T is None or not isinstance(module, AdaptedLinear | AdaptedExperts):
            return None
        pair = self.pairs.get(getattr(module, f"{weight}_adapters"))
        if pair is None:
            return None
        a_SECI, b_SEOL = pair
        return Factors(a_SECI=a_SECI, b_SEOL=b_SEOL, slot_T=self.slot_T)

    def part(self, start: int, end: int) -> "PassAdapters":
        """Return the adapters of some of the tokens."""
        return self if self.slot_T is None else replace(self, slot_T=self.slot_T[start:end])


NO_ADAPTERS = PassAdapters()


@contextmanager
def active(module: nn.Module, name: str | None) -> Iterator[None]:
    """Activate one adapter, or none, in the plain version of a module."""
    sites = [site for site in module.modules() if isinstance(site, Adapters)]
    with kept_active(sites):
        switch(sites, name)
        yield
