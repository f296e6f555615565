"""A training run as a TOML file: every setting has a name, a default and a check; unknown names are refused."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gesso.errors import InputError
from gesso.files import read_bytes

if TYPE_CHECKING:
    from gesso.adapters.files import LoraSettings
    from gesso.train.data import DataSettings
    from gesso.train.objective import ObjectiveSettings

RECIPE_LIMIT = 1 << 20  # bytes


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    path: str | None = None  # directory, hub name or name in the box; none: gesso-mini
    scratch: bool = False  # random weights in the shape of that checkpoint
    dtype: str = "float32"  # of the weights; frozen weights under an adapter may be bfloat16


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    kind: str = "adamw"  # or "muon": for matrices, with AdamW for the rest; to train from scratch with
    lr: float = 1.5e-4
    min_lr: float = 0.0
    warmup: int = 0  # steps
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    momentum: float = 0.95  # of muon
    weight_decay: float = 0.0  # of matrices
    clip: float = 1.0  # norm of the gradient

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
    accumulate: int = 1  # batches of a step
    seed: int = 0
    save_every: int = 500
    keep: int = 2  # checkpoints
    log_every: int = 10
    autocast: str = "none"  # or "bfloat16": matrix products in it, weights and sums in float32
    checkpoint_activations: bool = False  # compute them twice instead of keeping them
    compile: bool = False  # on a GPU; every new shape of a batch is compiled anew: see data.pad_to
    workers: int = 0  # processes that prepare batches ahead; 0: none
    ema: float = 0.0  # decay of the average of the weights that is exported; 0: none
    tensorboard: bool = False
    export_dtype: str = "float32"  # of the checkpoint that comes out
    export_shard: int = 5 * 10**9  # bytes of its files, at most

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulate", "save_every", "keep", "log_every", "export_shard"):
            value = getattr(self, name)
            _check(self, name, isinstance(value, int) and value >= 1, "a positive integer")
        _check(self, "workers", isinstance(self.workers, int) and self.workers >= 0, "at least 0")
        _check(self, "autocast", self.autocast in ("none", "bfloat16"), '"none" or "bfloat16"')
        _check(self, "export_dtype", self.export_dtype in ("float32", "bfloat16"), '"float32" or "bfloat16"')
        _check(self, "ema", 0 <= self.ema < 1, "at least 0 and below 1")
        _check(self, "out", bool(self.out), "a directory")


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """Score the model as it stands every so many steps; the scores go into the metrics."""

    task: str
    every: int
    count: int = 50
    seed: int = 0
    steps: int | None = None  # denoising steps; none: the checkpoint's

    def __post_init__(self) -> None:
        for name in ("every", "count"):
            value = getattr(self, name)
            _check(self, name, isinstance(value, int) and value >= 1, "a positive integer")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    model: ModelSettings
    data: "DataSettings"
    objective: "ObjectiveSettings"
    optimizer: OptimizerSettings
    run: RunSettings
    lora: "LoraSettings | None" = None  # none: all weights are trained
    eval: EvalSettings | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def load(path: Path) -> Recipe:
    from gesso.adapters.files import LoraSettings
    from gesso.train.data import DataSettings
    from gesso.train.objective import ObjectiveSettings

    try:
        raw = tomllib.loads(read_bytes(path, RECIPE_LIMIT).decode("utf-8"))
    except FileNotFoundError:
        raise InputError(f"no recipe {path}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise InputError(f"{path} cannot be read as TOML: it is nested too deeply") from None
    except ValueError as error:  # of the syntax, of the encoding, or of numbers with thousands of digits
        raise InputError(f"{path} cannot be read as TOML: {error}") from None
    kinds: dict[str, type[Any]] = {
        "model": ModelSettings,
        "data": DataSettings,
        "objective": ObjectiveSettings,
        "optimizer": OptimizerSettings,
        "run": RunSettings,
        "lora": LoraSettings,
        "eval": EvalSettings,
    }
    optional = {"lora", "eval"}
    if unknown := set(raw) - set(kinds):
        raise InputError(f"{path}: unknown sections {sorted(unknown)}; known are {', '.join(kinds)}")
    sections = {
        name: _section(path, name, kind, raw.get(name, {}))
        for name, kind in kinds.items()
        if name in raw or name not in optional
    }
    return Recipe(**sections)


def _section(path: Path, name: str, kind: type[Any], given: Any) -> Any:
    if not isinstance(given, Mapping):
        raise InputError(f"{path}: [{name}] must be a section")
    known = [item.name for item in fields(kind)]
    if unknown := set(given) - set(known):
        raise InputError(f"{path}: [{name}] has no settings {sorted(unknown)}; known are {', '.join(known)}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise InputError(f"{path}: [{name}]: {str(error).partition(') ')[2] or error}") from None
    except InputError as error:
        raise InputError(f"{path}: [{name}]: {error}") from None


def _check(settings: Any, name: str, ok: bool, wanted: str) -> None:
    if not ok:
        raise InputError(f"{name} must be {wanted}, got {getattr(settings, name)!r}")
