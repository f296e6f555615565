"""Denoising settings that a caller may choose, their bounds, and the presets."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from gesso.checks import integer, is_integer, number, shown
from gesso.errors import InputError

SAMPLERS = ("entropy-bound", "confidence-threshold", "ancestral", "ddim", "argmax", "autoregressive")
STOPPINGS = ("stable", "plateau", "fixed")

# Least and greatest value of every numeric setting, both included; integers for settings that count something. Beyond
# them the arithmetic in float32 overflows, or a request takes longer than anybody waits.
BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "steps": (1, 1000),
        "entropy_bound": (1e-9, 1e6),
        "t_max": (1e-3, 100.0),
        "t_min": (1e-3, 100.0),
        "stability": (0, 1000),
        "confidence": (1e-9, 1e6),
        "greed": (0.0, 1.0),
        "canvas_length": (1, 4096),
        "settle": (0, 1000),
    }
)


@dataclass(frozen=True, kw_only=True)
class Diffusion:
    """How a canvas is denoised. One set of names for Python, the command line and HTTP.

    `sampler` and `stopping` are names (see `gesso.diffusion`) or objects of your own that follow their Protocols.
    """

    steps: int = 48
    entropy_bound: float = 0.1
    t_max: float = 0.8
    t_min: float = 0.4
    stability: int = 1
    confidence: float = 0.005
    # The chance that a position takes its likeliest token where it would take a draw. Unlike a lower temperature, it
    # leaves the entropies alone, by which the process judges how sure it is.
    greed: float = 0.0
    sampler: Any = "entropy-bound"
    stopping: Any = "stable"
    canvas_length: int | None = None  # None: the checkpoint's
    # Judge convergence only up to the first end of text: what follows it is padding nobody reads.
    eos_settles: bool = False
    # A prefix becomes final once each of its positions took the same token so many steps in a row, each time with an
    # entropy below `confidence`; 0: nothing is final before the canvas is. What is final is never taken back.
    settle: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            if name == "canvas_length" and value is None:
                continue
            check_bounds = integer if is_integer(low) else number
            check_bounds(value, f"diffusion setting {name}", low, high, InputError)

        def check(ok: bool, name: str, wanted: str) -> None:
            if not ok:
                raise InputError(f"diffusion setting {name} must be {wanted}, got {shown(getattr(self, name))}")

        check(isinstance(self.eos_settles, bool), "eos_settles", "True or False")
        check(self.t_max >= self.t_min, "t_max", f"a number not below t_min ({self.t_min})")
        for name, known in (("sampler", SAMPLERS), ("stopping", STOPPINGS)):
            value = getattr(self, name)
            check(value in known if isinstance(value, str) else callable(value), name, f"one of {', '.join(known)}")
        if self.autoregressive:
            for name, wanted in NEXT_TOKEN.items():
                check(getattr(self, name) == wanted, name, f"{wanted} with sampler autoregressive: a token at a time")

    @property
    def autoregressive(self) -> bool:
        """The causal encoder writes token by token, from left to right; no canvas is denoised."""
        return bool(self.sampler == "autoregressive")


# `balanced` is the reference's own setting, to the digit.
PRESETS: Mapping[str, Diffusion] = MappingProxyType(
    {
        "quality": Diffusion(steps=96, entropy_bound=0.05, stability=2, confidence=0.002),
        "balanced": Diffusion(),
        "fast": Diffusion(steps=24, entropy_bound=0.4, confidence=0.02, eos_settles=True),
    }
)


# What "autoregressive" is as a diffusion: canvases of one token that take one step.
NEXT_TOKEN = MappingProxyType({"steps": 1, "canvas_length": 1, "stopping": "fixed", "settle": 0})
FIELDS = frozenset(item.name for item in fields(Diffusion))


def choose(defaults: Diffusion, preset: str | Diffusion | None = None, **given: Any) -> Diffusion:
    """The settings of one request: the preset (or the checkpoint's defaults) with the caller's own values on top."""
    if unknown := set(given) - FIELDS:
        raise InputError(f"unknown diffusion settings {sorted(unknown)}; known are {sorted(FIELDS)}")
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise InputError(f"unknown preset {preset!r}; known are {', '.join(PRESETS)}, or give a gesso.Diffusion")
        preset = PRESETS[preset]
    if given.get("sampler") == "autoregressive":
        given = {**NEXT_TOKEN, **given}
    return replace(defaults if preset is None else preset, **given)
