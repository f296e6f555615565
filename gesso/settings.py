"""The one schema of diffusion settings: names, types, defaults, bounds, help texts and presets.

Command-line options, HTTP fields, studio controls and the reference table are generated from `OPTIONS`. To add a
setting, declare a field of `Diffusion`, and repeat its name and type in `DiffusionOptions` for type checkers.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypedDict, TypeVar, Unpack, get_args

from gesso import renamed
from gesso.checks import integer, number, shown
from gesso.errors import InputError
from gesso.removed import REMOVED
from gesso.rules import NEEDS, Rule

WriteName = Literal["canvas", "tokens", "verified"]
SamplerName = Literal["entropy-bound"]
StoppingName = Literal["stable", "fixed"]
PresetName = Literal["quality", "balanced", "fast", "laptop"]
WRITES: tuple[WriteName, ...] = get_args(WriteName)
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)
STOPPINGS: tuple[StoppingName, ...] = get_args(StoppingName)
Custom = Rule | Callable[..., Any]  # a `Sampler` or `Stopping` of `gesso.diffusion`, or a function like them
BASES: Mapping[str, str] = MappingProxyType({"sampler": "moment.Sampler", "stopping": "stopping.Stopping"})
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The declaration of one setting."""

    name: str
    kind: str  # a type of JSON Schema: integer, number, boolean or string
    default: Any
    help: str
    bounds: tuple[float, float] | None = None  # least and greatest value, both included
    choices: tuple[str, ...] = ()
    custom: bool = False  # Python callers may pass a callable in place of a choice
    label: str  # of the studio's control
    basic: bool = False  # the studio shows the control without a click on "Advanced"

    def check(self, value: Any) -> None:
        """Reject a value of the wrong type or outside the bounds or choices."""
        name = f"diffusion setting {self.name}"
        if value is None and self.default is None:
            return
        if self.bounds is not None:
            check_bounds = integer if self.kind == "integer" else number
            check_bounds(value, name, *self.bounds, InputError)
        elif self.kind == "boolean":
            if not isinstance(value, bool):
                raise InputError(f"{name} must be true or false, got {shown(value)}")
        elif self.custom and not isinstance(value, str):
            check_rule(value, self.name)
        elif value not in self.choices:
            expected = f"{name} must be one of {', '.join(self.choices)}, got {shown(value)}"
            raise InputError(REMOVED.get(value, expected) if isinstance(value, str) else expected)

    def parse(self, text: str) -> Any:
        """Convert a command-line argument. Text of another type is returned as it is; `check` rejects it."""
        convert = {"integer": int, "number": float}.get(self.kind, str)
        try:
            return convert(text)
        except ValueError:
            return text

    def json_schema(self) -> dict[str, Any]:
        """Return the setting as JSON Schema, for the HTTP API and the studio."""
        schema: dict[str, Any] = {"title": self.label, "description": self.help, "type": self.kind}
        if self.bounds is not None:
            schema["minimum"], schema["maximum"] = self.bounds
        if self.choices:
            schema["enum"] = list(self.choices)
        return schema

    @property
    def range(self) -> str:
        """The bounds or choices in words; empty for a boolean."""
        if self.bounds is None:
            return ", ".join(self.choices)
        return " to ".join(f"{bound:,}" if self.kind == "integer" else f"{bound:g}" for bound in self.bounds)


def check_rule(rule: Any, kind: str) -> None:
    """Reject an object that is neither a function nor a rule for the setting `kind`: sampler or stopping."""
    if not isinstance(rule, Rule):
        if not callable(rule) or hasattr(rule, "needs"):
            raise InputError(
                f"diffusion setting {kind} must be a name, a function, or an object of a class that derives from "
                f"gesso.diffusion.{BASES[kind]}, got {shown(rule)}"
            )
    elif rule.kind != kind:
        raise InputError(f"diffusion setting {kind} got {shown(rule)}, which is a rule for {rule.kind}")
    elif unknown := {*rule.needs} - {*NEEDS}:
        raise InputError(
            f"diffusion setting {kind}: needs must be among {', '.join(NEEDS)}, got "
            f"{shown(sorted(map(str, unknown)))}; compute other statistics from the logits"
        )


def setting(default: T, help: str, **metadata: Any) -> T:
    """Declare a field of `Diffusion`; `metadata` are further fields of `Setting`."""
    return field(default=default, metadata={"help": help, **metadata})


@dataclass(frozen=True, kw_only=True)
class Diffusion:
    """How text is written. Python, the command line and HTTP use the same names.

    `sampler` and `stopping` are names, functions, or objects of classes that derive from `Sampler` and `Stopping` in
    `gesso.diffusion`. Beyond the bounds, float32 arithmetic overflows or a request takes longer than anyone waits.
    """

    # Sampler, stopping rule and steps apply to canvases. With "tokens" and "verified" the causal encoder decides every
    # token, and `BY_TOKEN` has the values of those settings.
    write: WriteName = setting(
        "canvas",
        "canvas denoises whole canvases. tokens writes one token per pass. verified writes the same tokens, several "
        "per pass.",
        choices=WRITES,
        basic=True,
    )
    steps: int = setting(48, "Maximum number of denoising steps per canvas.", bounds=(1, 1000), basic=True)
    entropy_bound: float = setting(
        0.1,
        "Uncertainty that the entropy-bound sampler accepts per step, in nats. Higher is faster.",
        bounds=(1e-9, 1e6),
        basic=True,
    )
    t_max: float = setting(0.8, "Temperature of the first step.", bounds=(1e-3, 100.0), label="First temperature")
    t_min: float = setting(
        0.4, "Temperature that the last step approaches.", bounds=(1e-3, 100.0), label="Last temperature"
    )
    stability: int = setting(
        1, "Steps without a change of the most likely tokens before a canvas is done.", bounds=(0, 1000)
    )
    confidence: float = setting(0.005, "Mean entropy below which a canvas is done, in nats.", bounds=(1e-9, 1e6))
    # Unlike a lower temperature, it does not change the entropies, from which sampler and stopping rule decide.
    greed: float = setting(
        0.0, "Probability that a position takes its most likely token instead of a draw.", bounds=(0.0, 1.0)
    )
    # These three restrict the draws only: sampler and stopping rule decide by the full distribution.
    top_k: int = setting(0, "Draw only from this many of the most likely tokens. 0: from all.", bounds=(0, 1_000_000))
    top_p: float = setting(
        1.0,
        "Draw only from the most likely tokens that together reach this probability. 1: from all.",
        bounds=(0.0, 1.0),
    )
    min_p: float = setting(
        0.0,
        "Draw only tokens at least this many times as likely as the most likely token. 0: from all.",
        bounds=(0.0, 1.0),
    )
    sampler: SamplerName | Custom = setting(
        "entropy-bound",
        "Rule that selects the positions that take their predicted token.",
        choices=SAMPLERS,
        custom=True,
        basic=True,
    )
    stopping: StoppingName | Custom = setting(
        "stable", "Rule that ends a canvas.", choices=STOPPINGS, custom=True, label="Stopping rule"
    )
    # The same bounds as canvas_length in config.json.
    canvas_length: int | None = setting(None, "Tokens per canvas. Default: the checkpoint's.", bounds=(1, 4096))
    # The positions after the first end of text are padding.
    eos_settles: bool = setting(
        False, "Check convergence only up to the first end of text.", label="Check up to end of text"
    )
    # A prefix is final once each of its positions took the same token this many steps in a row, each time with an
    # entropy below `confidence`. Final tokens never change. The default is a trade: docs/benchmarks/serving.md has the
    # time to the first text and the scores with 0 and 1.
    settle: int = setting(
        1, "Unchanged steps after which a prefix is final. 0: a canvas is final as a whole.", bounds=(0, 1000)
    )

    def __post_init__(self) -> None:
        if renamed.is_former("sampler", self.sampler):
            self._rename_sampler()
        for declared in SETTINGS.values():
            declared.check(getattr(self, declared.name))
        if self.t_max < self.t_min:
            raise InputError(
                f"diffusion setting t_max must be a number not below t_min ({self.t_min}), got {self.t_max}"
            )
        fixed: Mapping[str, Any] = BY_TOKEN.get(self.write, {})
        for name, required in fixed.items():
            drafts = name == "canvas_length" and self.verified
            if (value := getattr(self, name)) != required and not drafts:
                raise InputError(
                    f"diffusion setting {name} must be {required} with write={self.write}, which denoises no canvas "
                    f"step by step; got {shown(value)}"
                )
        if self.verified and (self.canvas_length is None or not 2 <= self.canvas_length <= LONGEST_DRAFT):
            raise InputError(
                f"diffusion setting canvas_length must be 2 to {LONGEST_DRAFT} with write=verified, whose canvas "
                f"drafts the next tokens; got {shown(self.canvas_length)}"
            )

    @property
    def token_by_token(self) -> bool:
        """Whether the causal encoder writes one token per pass, from left to right, and no canvas is denoised."""
        return self.write == "tokens"

    @property
    def verified(self) -> bool:
        """Whether canvases only draft, and the causal encoder decides which tokens stay."""
        return self.write == "verified"

    @property
    def by_token(self) -> bool:
        """Whether the causal encoder decides every token from the ones before it."""
        return self.write in BY_TOKEN

    @property
    def restricts_draws(self) -> bool:
        """Whether some tokens are excluded from the draws, by top_k, top_p or min_p."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    def _rename_sampler(self) -> None:
        """Replace a former sampler by the way of writing that it was."""
        current = renamed.translated({"sampler": self.sampler})
        # When these were samplers, the default of `settle` was 0.
        for name, value in {**current, "sampler": "entropy-bound", "settle": 0}.items():
            object.__setattr__(self, name, value)


class DiffusionOptions(TypedDict, total=False):
    """The fields of `Diffusion` as keyword arguments."""

    write: WriteName
    steps: int
    entropy_bound: float
    t_max: float
    t_min: float
    stability: int
    confidence: float
    greed: float
    top_k: int
    top_p: float
    min_p: float
    sampler: SamplerName | Custom
    stopping: StoppingName | Custom
    canvas_length: int | None
    eos_settles: bool
    settle: int


def _kind(annotation: Any) -> str:
    kinds = {int: "integer", float: "number", bool: "boolean"}
    return next((kinds[part] for part in (annotation, *get_args(annotation)) if part in kinds), "string")


def _label(name: str) -> str:
    return name.replace("_", " ").capitalize()


SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        item.name: Setting(
            name=item.name,
            kind=_kind(item.type),
            default=item.default,
            **{"label": _label(item.name), **item.metadata},
        )
        for item in fields(Diffusion)
    }
)
# Writing by token as a diffusion: canvases that take one step. The values of the settings that are for canvases only.
_ONE_STEP: DiffusionOptions = {"steps": 1, "sampler": "entropy-bound", "stopping": "fixed", "settle": 0}
BY_TOKEN: Mapping[WriteName, DiffusionOptions] = MappingProxyType(
    {
        "tokens": {**_ONE_STEP, "canvas_length": 1},
        "verified": {**_ONE_STEP, "canvas_length": 16},  # the default: longer drafts are seldom right to the end
    }
)
LONGEST_DRAFT = 64  # the KV cache can take back no more

DRAWING = frozenset(
    ("greed", "top_k", "top_p", "min_p", "t_max", "t_min")
)  # settings with a meaning for any way of writing
SHORT: PresetName = "laptop"  # the preset that leaves open whether canvases are used

PRESETS: Mapping[PresetName, Diffusion] = MappingProxyType(
    {
        "quality": Diffusion(steps=96, entropy_bound=0.05, stability=2, confidence=0.002),
        "balanced": Diffusion(),  # the reference's defaults, and `settle`, which the reference does not have
        "fast": Diffusion(steps=24, entropy_bound=0.4, confidence=0.02, eos_settles=True),
        # The time of a step on a CPU grows with the canvas. A model that writes token by token there still does so.
        "laptop": Diffusion(steps=24, entropy_bound=0.4, confidence=0.02, eos_settles=True, canvas_length=64),
    }
)
PRESET = Setting(
    name="preset",
    kind="string",
    default=None,
    help="Starting values: quality takes more steps, fast takes fewer, laptop also has short canvases. Other options "
    "take precedence.",
    choices=tuple(PRESETS),
    label="Preset",
    basic=True,
)
# Everything that command line, HTTP API and studio offer.
OPTIONS: Mapping[str, Setting] = MappingProxyType({"preset": PRESET, **SETTINGS})


def unknown_settings(names: Iterable[str], also: Iterable[str] = ()) -> str:
    """Return the error message for unknown setting names; `also` are other names that the caller accepts."""
    names = sorted(names)
    for name in names:
        if name in REMOVED:
            return REMOVED[name]
    others = f"; other options are {', '.join(also)}" if also else ""
    return f"unknown diffusion setting {', '.join(names)}; known are {', '.join(SETTINGS)}{others}"


def choose(
    defaults: Diffusion, preset: PresetName | Diffusion | None = None, **given: Unpack[DiffusionOptions]
) -> Diffusion:
    """Return the settings of a request: the preset, or else `defaults`, with the given values on top.

    With another way of writing than the preset's, the settings that are for canvases only have that way's values.
    """
    if unknown := given.keys() - SETTINGS.keys():
        raise InputError(unknown_settings(unknown))
    if not isinstance(preset, Diffusion):
        PRESET.check(preset)
        preset = defaults if preset is None else PRESETS[preset]
    write = given.get("write", preset.write)
    if write == preset.write:
        return replace(preset, **given)
    SETTINGS["write"].check(write)
    usual = {name: SETTINGS[name].default for name in BY_TOKEN.get(preset.write, ())}
    return replace(preset, **{**usual, **BY_TOKEN.get(write, {}), **given})


def at_temperature(settings: Diffusion, temperature: float) -> DiffusionOptions:
    """Return the settings that change with a temperature as chat APIs define it: 0 is greedy, 1 leaves all as it is.

    Below 1, draws are greedier. Lower t_max and t_min would also lower the entropies that the process measures its
    confidence by: at half the temperature it accepts so much so early that half of our small model's right answers
    become wrong.
    """
    number(temperature, "temperature", 0.0, 2.0, InputError)
    if temperature < 1:
        return {"greed": 1 - temperature * (1 - settings.greed)}
    return {"t_max": settings.t_max * temperature, "t_min": settings.t_min * temperature}


def changed(preset: Diffusion) -> dict[str, Any]:
    """Return the settings of a preset that differ from the defaults."""
    return {
        name: getattr(preset, name) for name, declared in SETTINGS.items() if getattr(preset, name) != declared.default
    }


def reference() -> str:
    """Return the settings and presets as Markdown tables."""
    rows = ["| setting | type | default | values | description |", "|---|---|---|---|---|"]
    for declared in SETTINGS.values():
        default = "the checkpoint's" if declared.default is None else f"`{declared.default}`"
        values = "true, false" if declared.kind == "boolean" else declared.range
        rows.append(f"| `{declared.name}` | {declared.kind} | {default} | {values} | {declared.help} |")
    rows += ["", "| preset | settings that differ from the defaults |", "|---|---|"]
    for name, preset in PRESETS.items():
        shown_values = ", ".join(f"`{key}={value}`" for key, value in changed(preset).items()) or "none"
        rows.append(f"| `{name}` | {shown_values} |")
    return "\n".join(rows) + "\n"
