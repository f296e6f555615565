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
_QUANTIZATIONS = ("fp8", "int4", "nvfp4")


def _as_example(kind: str, name: str, rule: str) -> str:
    return (
        f"{kind} {name} is no longer built in: it is an example now. In a clone of the repository, give "
        f"--{kind} {RULES}:{rule} on the command line, or {kind}={rule}() of {RULES} in Python"
    )


REMOVED: Mapping[str, str] = MappingProxyType(
    {
        **{name: _as_example("sampler", name, rule) for name, rule in _SAMPLERS.items()},
        **{name: _as_example("stopping", name, rule) for name, rule in _STOPPINGS.items()},
        "slide": "diffusion setting slide was removed, because it saved no steps; leave it out. settle=1 streams the "
        "same tokens",
        "accept_ratio": "diffusion setting accept_ratio was removed, because it saved hardly a pass; leave it out",
        **{f"{name}-layers": f"quantization {name}-layers was removed; use {name}" for name in _QUANTIZATIONS},
        "reweighted": "setting reweighted was removed, because it gained nothing; leave it out",
        "leave_one_out": "setting leave_one_out was removed, because it gained nothing; leave it out",
    }
)

_BENCH = (
    "gesso bench measures a model and a server. In a clone of the repository, give its former options to "
    "python -m benchmarks.NAME, where NAME is adapters, constrained, constraints, images, kernels, peers, schemas, "
    "step or train"
)
_OF_BENCH = (
    "adapters", "answers", "compare", "compile", "constrained", "data", "fields", "limit", "only", "peer", "rank",
    "shape", "steps", "targets", "workers",
)  # fmt: skip
# By command and option.
_OF_COMMANDS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        **{("bench", f"--{option}"): _BENCH for option in _OF_BENCH},
        ("eval", "--method"): "--method was removed, because the encoder chose no better; leave it out",
        ("serve", "--settle"): "--settle was removed: give diffusion.settle with a request, or settle in the "
        "checkpoint's generation_config.json",
        ("tune", "--sampler"): "--sampler was removed: gesso tune tries all ways of writing; leave it out",
    }
)


def removed_option(command: str | None, option: str) -> str | None:
    """Return the error for an option that a command once had, or None. Without a command: one that several had."""
    if command is not None and (command, option) in _OF_COMMANDS:
        return _OF_COMMANDS[command, option]
    return REMOVED.get(option.removeprefix("--").replace("-", "_"))
