"""The base of rules that callers may replace: what a sampler or a stopping rule declares about itself."""

from typing import ClassVar, Literal, get_args

# Fields of a prediction that are computed only for rules that name them.
Need = Literal["logits"]
NEEDS: tuple[Need, ...] = get_args(Need)
EVERY_STEP = 1_000_000  # more than any canvas takes


class Rule:
    """A rule of the diffusion process. The class declares what it needs.

    Derive from `gesso.diffusion.moment.Sampler` or `gesso.diffusion.stopping.Stopping`.
    """

    kind: ClassVar[str]  # the setting that names such a rule: "sampler" or "stopping"
    needs: ClassVar[frozenset[Need]] = frozenset()

    @property
    def memory(self) -> int:
        """The number of earlier predictions that the rule may read. It gets no more than these."""
        return 0
