"""The schema of a training recipe: a TOML file with one section for each dataclass here.

Every setting has a type, a default and a check. Unknown sections and settings are errors.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gesso.checks import is_integer
from gesso.errors import InputError
from gesso.files import read_bytes
from gesso.removed import REMOVED
from gesso.train.files import SUFFIXES, is_data

if TYPE_CHECKING:
    from gesso.adapters import LoraSettings

RECIPE_LIMIT = 1 << 20  # bytes
LOGS = ("tensorboard", "wandb")


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    path: str | None = None  # directory, hub name or bundled model; None: gesso-mini
    scratch: bool = False  # start from random weights in the shape of that checkpoint
    dtype: str = "float32"  # of the weights; bfloat16 only for the frozen weights under an adapter
    quantize: str | None = None  # "fp8", "int4" or "nvfp4": pack frozen weights while they are loaded
    train: Literal["text", "vision", "all"] = "text"  # weights to train: the text model or its adapter, or the tower

    def __post_init__(self) -> None:
        _check(self, "train", self.train in ("text", "vision", "all"), '"text", "vision" or "all"')


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    files: tuple[str, ...]
    max_length: int
    source: str | None = None  # module:name of code that generates the examples; see gesso.train.source
    on_bad_row: Literal["skip", "stop"] = "stop"
    seed: int = 0
    cut: bool = False  # show texts longer than max_length one section at a time instead of rejecting them
    infill: float = 0.0  # share of the texts shown with a hole to fill
    repeat: tuple[int, ...] = ()  # passes over each file per epoch; empty: one
    pack: bool = False  # put the texts of a batch one after another instead of padding each to the longest
    pad_to: int = 1  # pad each text of a batch, or the packed texts, to a multiple of this: fewer shapes to compile
    prompt_lengths: tuple[int, ...] = ()  # of the batches, in turn: cut or fill the text before a response to this

    def __post_init__(self) -> None:
        _check(self, "files", isinstance(self.files, tuple) and len(self.files) > 0, "a list of at least one file")
        named = all(isinstance(file, str) and (self.source or is_data(file)) for file in self.files)
        _check(self, "files", named, f"names that end in {', '.join(SUFFIXES)}, or hub datasets as owner/name:split")
        _check(self, "max_length", is_integer(self.max_length) and self.max_length >= 2, "an integer of at least 2")
        _check(self, "on_bad_row", self.on_bad_row in ("skip", "stop"), '"skip" or "stop"')
        _check(self, "seed", is_integer(self.seed) and self.seed >= 0, "an integer of at least 0")
        _check(self, "cut", isinstance(self.cut, bool), "true or false")
        _check(self, "infill", 0 <= self.infill <= 1, "a share between 0 and 1")
        one_each = not self.repeat or len(self.repeat) == len(self.files)
        _check(self, "repeat", one_each and all(map(_is_count, self.repeat)), "one positive integer per file")
        _check(self, "pack", isinstance(self.pack, bool), "true or false")
        _check(self, "pad_to", _is_count(self.pad_to), "an integer of at least 1")
        lengths = all(is_integer(length) and 8 <= length < self.max_length for length in self.prompt_lengths)
        _check(self, "prompt_lengths", lengths, "integers of at least 8, below max_length")
        for name in ("cut", "infill", "repeat", "prompt_lengths") if self.source else ():
            _check(self, name, not getattr(self, name), f"left out: {self.source} generates complete examples")


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    canvases_per_example: int | str = 1  # or "all"
    encoder_weight: float = 1.0
    encoder_on: str = "response"  # or "all": train the encoder on the prompts too
    self_conditioning: float = 0.5  # share of examples that get a first pass
    unrolled: float = 0.0  # share of those that are shown the canvas after that pass, with its mistakes
    canvas_lengths: tuple[int, ...] = ()  # of the batches, in turn; empty: the model's own
    draws: tuple[int, ...] = (1,)  # of the batches, in turn: noise levels at which each canvas is shown
    pinned: float = 0.0  # share of examples with noise in one section of the canvas only
    balance_weight: float = 0.0  # of the router's load balance; a model trained from scratch needs some

    def __post_init__(self) -> None:
        k = self.canvases_per_example
        _check(self, "canvases_per_example", k == "all" or _is_count(k), 'a positive integer or "all"')
        _check(self, "encoder_on", self.encoder_on in ("response", "all"), '"response" or "all"')
        for name in ("self_conditioning", "unrolled", "pinned"):
            _check(self, name, 0 <= getattr(self, name) <= 1, "a share between 0 and 1")
        for name in ("canvas_lengths", "draws"):
            _check(self, name, all(map(_is_count, getattr(self, name))), "positive integers")
        _check(self, "draws", len(self.draws) > 0, "at least one number")
        for name in ("encoder_weight", "balance_weight"):
            value = getattr(self, name)
            _check(self, name, math.isfinite(value) and value >= 0, "a number of at least 0")

    @property
    def per_example(self) -> int | None:
        return None if self.canvases_per_example == "all" else int(self.canvases_per_example)

    @property
    def learn_text(self) -> str:
        """Return the text that the encoder is trained on: "all", "response" or "none"."""
        return self.encoder_on if self.encoder_weight else "none"


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    kind: str = "adamw"  # or "muon": for matrices, with AdamW for the rest; for training from scratch
    lr: float = 1.5e-4
    min_lr: float = 0.0
    warmup: int = 0  # steps
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    momentum: float = 0.95  # of muon
    weight_decay: float = 0.0  # of matrices
    clip: float = 1.0  # largest norm of the gradient

    def __post_init__(self) -> None:
        _check(self, "kind", self.kind in ("adamw", "muon"), '"adamw" or "muon"')
        _check(self, "momentum", 0 <= self.momentum < 1, "at least 0 and below 1")
        _check(self, "lr", self.lr > 0, "above 0")
        _check(self, "min_lr", 0 <= self.min_lr <= self.lr, "between 0 and lr")
        _check(self, "warmup", self.warmup >= 0, "at least 0")
        _check(self, "clip", self.clip > 0, "above 0")
        _check(self, "betas", len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas), "two numbers below 1")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    out: str
    steps: int
    batch_size: int
    accumulate: int = 1  # batches per step
    seed: int = 0
    save_every: int = 500
    keep: int = 2  # checkpoints
    log_every: int = 10
    autocast: str = "none"  # or "bfloat16": products in bfloat16, weights and sums in float32
    checkpoint_activations: bool = False  # recompute activations instead of storing them
    compile: bool = False  # on a GPU; compiles once per batch shape: see data.pad_to
    workers: int = 0  # processes that prepare batches ahead
    ema: float = 0.0  # decay of the exported average of the weights; 0: export the weights themselves
    log: tuple[str, ...] = ()  # "tensorboard", "wandb": send the metrics there as well
    export_dtype: str = "float32"  # of the exported checkpoint
    export_shard: int = 5 * 10**9  # largest size of its files in bytes

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulate", "save_every", "keep", "log_every", "export_shard"):
            _check(self, name, _is_count(getattr(self, name)), "a positive integer")
        _check(self, "workers", is_integer(self.workers) and self.workers >= 0, "at least 0")
        _check(self, "autocast", self.autocast in ("none", "bfloat16"), '"none" or "bfloat16"')
        _check(self, "export_dtype", self.export_dtype in ("float32", "bfloat16"), '"float32" or "bfloat16"')
        _check(self, "ema", 0 <= self.ema < 1, "at least 0 and below 1")
        _check(self, "out", bool(self.out), "a directory")
        known = isinstance(self.log, tuple) and all(name in LOGS for name in self.log)
        _check(self, "log", known, f"a list of {', '.join(LOGS)}")


@dataclass(frozen=True, kw_only=True)
class ContinuedLora:
    """An adapter to train further, with its own rank, alpha and targets: `[lora] from` in a recipe."""

    adapter: str  # directory or hub name


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """Evaluate the model every `every` steps during training; the scores are added to the metrics."""

    task: str
    every: int
    count: int = 50
    seed: int = 0
    steps: int | None = None  # denoising steps; None: the checkpoint's default

    def __post_init__(self) -> None:
        for name in ("every", "count"):
            _check(self, name, _is_count(getattr(self, name)), "a positive integer")


@dataclass(frozen=True, kw_only=True)
class HeldOutSettings:
    """Compute the loss of rows that are not trained on. The weights with the lowest loss are exported."""

    every: int  # steps between evaluations
    files: tuple[str, ...] = ()  # empty: 5 % of the rows, at least 2 and at most 200, chosen by their hash
    patience: int = 3  # stop after this many evaluations without an improvement
    samples: int = 2  # answers shown at each evaluation

    def __post_init__(self) -> None:
        for name in ("every", "patience"):
            _check(self, name, _is_count(getattr(self, name)), "a positive integer")
        _check(self, "samples", is_integer(self.samples) and self.samples >= 0, "an integer of at least 0")
        named = isinstance(self.files, tuple) and all(isinstance(file, str) and is_data(file) for file in self.files)
        _check(self, "files", named, f"names that end in {', '.join(SUFFIXES)}, or hub datasets as owner/name:split")


@dataclass(frozen=True, kw_only=True)
class DistillSettings:
    """Train on canvases of the model's own runs, towards the text that each run ended with: see `gesso distill`."""

    trajectories: tuple[str, ...]  # directories that `gesso distill` recorded
    objective: str = "trajectory"  # or "ordinary": the same texts under random noise, as a control
    certainty: float = 1.0  # weight of the entropy where the argmax is right, on recorded canvases
    depth: int = 4  # steps before the last canvas of a run that is shown; each of them costs a pass
    rows: float = 0.25  # share of the examples of a batch that are rows of data.files, under random noise

    def __post_init__(self) -> None:
        named = isinstance(self.trajectories, tuple) and all(isinstance(name, str) for name in self.trajectories)
        _check(self, "trajectories", named and len(self.trajectories) > 0, "a list of at least one directory")
        _check(self, "objective", self.objective in ("trajectory", "ordinary"), '"trajectory" or "ordinary"')
        _check(self, "certainty", math.isfinite(self.certainty) and self.certainty >= 0, "a number of at least 0")
        _check(self, "depth", _is_count(self.depth), "a positive integer")
        _check(self, "rows", 0 <= self.rows < 1, "a share of at least 0 and below 1")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    model: ModelSettings
    data: DataSettings
    objective: ObjectiveSettings
    optimizer: OptimizerSettings
    run: RunSettings
    lora: "LoraSettings | ContinuedLora | None" = None  # None: train all weights
    eval: EvalSettings | None = None
    held_out: HeldOutSettings | None = None  # None: train on all rows
    distill: DistillSettings | None = None  # None: train on rows only

    def __post_init__(self) -> None:
        if self.lora is not None and self.model.train != "text":
            raise InputError(
                f'model.train = "{self.model.train}" trains the vision tower, and an adapter has no place for it; '
                "remove one of the two"
            )
        if self.distill is None:
            return
        objective = self.objective
        for wrong, what in (
            (objective.per_example != 1, "objective.canvases_per_example = 1, the recorded one"),
            (objective.draws != (1,), "objective.draws = [1]: a canvas is shown at one step of its run"),
            (objective.unrolled > 0, "objective.unrolled = 0: recorded canvases have their own mistakes"),
            (self.data.source is not None, "no data.source: ordinary rows come from data.files"),
            (self.held_out is not None, "no [held_out]: its loss would choose by ordinary noise"),
        ):
            if wrong:
                raise InputError(f"[distill] needs {what}")


def load(path: Path) -> Recipe:
    from gesso.adapters import LoraSettings

    try:
        raw = tomllib.loads(read_bytes(path, RECIPE_LIMIT).decode("utf-8"))
    except FileNotFoundError:
        raise InputError(f"recipe {path} does not exist") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise InputError(f"{path} cannot be read as TOML: it is nested too deeply") from None
    except ValueError as error:  # syntax, encoding, or a number with thousands of digits
        raise InputError(f"{path} cannot be read as TOML: {error}") from None
    required: dict[str, type[Any]] = {
        "model": ModelSettings,
        "data": DataSettings,
        "objective": ObjectiveSettings,
        "optimizer": OptimizerSettings,
        "run": RunSettings,
    }
    kinds = {
        **required,
        "lora": LoraSettings,
        "eval": EvalSettings,
        "held_out": HeldOutSettings,
        "distill": DistillSettings,
    }
    if unknown := set(raw) - set(kinds):
        raise InputError(f"{path}: unknown sections {sorted(unknown)}; known are {', '.join(kinds)}")
    given = {**dict.fromkeys(required, {}), **raw}
    sections = {name: _section(path, name, kinds[name], given[name]) for name in given}
    try:
        return Recipe(**sections)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _section(path: Path, name: str, kind: type[Any], given: Any) -> Any:
    if not isinstance(given, Mapping):
        raise InputError(f"{path}: [{name}] must be a section, got {given!r}")
    if name == "lora" and "from" in given:  # a keyword of Python, so no field of a dataclass can have this name
        return _continued(path, given)
    settings = [setting.name for setting in fields(kind)]
    if unknown := set(given) - set(settings):
        message = f"has unknown settings {sorted(unknown)}; known are {', '.join(settings)}"
        removed = [REMOVED[setting] for setting in sorted(unknown) if setting in REMOVED]
        raise InputError(f"{path}: [{name}] {removed[0] if removed else message}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    try:
        return kind(**values)
    except TypeError as error:  # a missing setting, after the name of the method
        raise InputError(f"{path}: [{name}]: {str(error).partition(') ')[2] or error}") from None
    except InputError as error:
        raise InputError(f"{path}: [{name}]: {error}") from None


def _continued(path: Path, given: Mapping[str, Any]) -> ContinuedLora:
    if not isinstance(given["from"], str) or not given["from"]:
        raise InputError(f"{path}: [lora]: from must be the directory or hub name of an adapter, got {given['from']!r}")
    if others := sorted(set(given) - {"from"}):
        raise InputError(
            f"{path}: [lora] has from and {', '.join(others)}; an adapter that is continued keeps its own rank, alpha "
            "and targets: remove the other settings"
        )
    return ContinuedLora(adapter=given["from"])


def _check(settings: Any, name: str, ok: bool, expected: str) -> None:
    if not ok:
        raise InputError(f"{name} must be {expected}, got {getattr(settings, name)!r}")


def _is_count(value: Any) -> bool:
    return is_integer(value) and value >= 1
