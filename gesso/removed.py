"""Names that Gesso once had, with what replaces them. Wherever such a name is read, its error is the text here."""

from collections.abc import Mapping
from types import MappingProxyType

RULES = "examples.samplers.rules"
_SAMPLERS = {
    "confidence-threshold": "ConfidenceThreshold",
    "stable-tokens": "StableTokens",
    "credit": "Credit",
    "informed-corrector": "InformedCorrector",
    "ancestral": "Ancestral",
    "predictor-corrector": "PredictorCorrector",
    "ddim": "Ddim",
    "argmax": "Argmax",
}
_STOPPINGS = {"top-2-gap": "TopTwoGap", "schedule": "GapSchedule", "plateau": "Plateau"}


def _as_example(kind: str, name: str, rule: str) -> str:
    return (
        f"{kind} {name} is no longer built in: it is an example now. Give --{kind} {RULES}:{rule} on the command line, "
        f"or {kind}={rule}() of {RULES} in Python"
    )


REMOVED: Mapping[str, str] = MappingProxyType(
    {
        **{name: _as_example("sampler", name, rule) for name, rule in _SAMPLERS.items()},
        **{name: _as_example("stopping", name, rule) for name, rule in _STOPPINGS.items()},
        "slide": "diffusion setting slide was removed, because it saved no steps; leave it out. settle=1 streams the "
        "same tokens",
        "accept_ratio": "diffusion setting accept_ratio was removed, because it saved hardly a pass; leave it out",
    }
)
