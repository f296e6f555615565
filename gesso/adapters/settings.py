"""The settings of an adapter: its rank, its alpha, and the groups of weights that it changes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gesso.checks import shown
from gesso.errors import InputError

MAX_RANK = 2**16
MAX_ALPHA = 1e9
# Groups of weights, as patterns of parameter names.
TARGETS = {
    "attention": r".*\.self_attn\.[qkvo]_proj\.weight",
    "mlp": r".*\.mlp\.(gate|up|down)_proj\.weight",
    "self_conditioning": r"self_conditioning\.(gate|up|down)_proj\.weight",
    "router": r".*\.router\.proj\.weight",
    "experts": r".*\.experts\.(gate_up|down)_proj",
}


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """A new adapter. In a recipe, `from = "DIR"` in place of these settings continues an adapter with its own."""

    rank: int = 8
    alpha: float = 16.0  # the change is scaled by alpha / rank
    # Without the router: a change of it sends tokens to other experts, and a small data set trains few of those.
    targets: tuple[str, ...] = ("attention", "mlp")  # of attention, mlp, self_conditioning, router and experts

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or not 0 < self.rank <= MAX_RANK:
            raise InputError(
                f"the rank of an adapter must be a positive integer up to {MAX_RANK:,}, got {shown(self.rank)}"
            )
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not 0 < self.alpha <= MAX_ALPHA:
            raise InputError(
                f"the alpha of an adapter must be a positive number up to {MAX_ALPHA:g}, got {shown(self.alpha)}"
            )
        if isinstance(self.targets, str) or not self.targets:
            raise InputError(f"targets must be a tuple of one or more of {', '.join(TARGETS)}, got {self.targets!r}")
        if unknown := [target for target in self.targets if target not in TARGETS]:
            raise InputError(f"unknown adapter targets {unknown}; known are {', '.join(TARGETS)}")


def groups_of(paths: Iterable[str], groups: Iterable[str] = TARGETS) -> tuple[str, ...]:
    """Return the target groups to which some of these parameters belong."""
    paths = list(paths)
    return tuple(group for group in groups if any(re.fullmatch(TARGETS[group], path) for path in paths))
