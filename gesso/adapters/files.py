"""Read and write adapters in the format of `peft`.

Encoder and decoder share their weights, and one adapter acts on both. In `transformers` they are separate modules with
tied parameters, and `peft` wraps each by itself: an adapter under `model.decoder…` alone leaves the encoder, and with
it every key and value of the prompt, unchanged. So a file holds every change twice, under `model.decoder…` and under
`model.encoder.language_model…`, with equal tensors. In an adapter trained by `peft` the two differ, since it
initializes and trains them separately. Such an adapter is loaded as it is (`split_encoder`), but cannot be merged:
there is one weight for two changes. (`merge_and_unload` of `peft` adds both to the one tied weight, which is wrong for
either kind.)

E experts, O outputs, I inputs, L rank.
"""

import json
import logging
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gesso.adapters.attach import StoredAdapter, activate, attach, check_known, check_new, train_only
from gesso.adapters.lora import Lora
from gesso.adapters.settings import LoraSettings, groups_of
from gesso.adapters.sites import adaptable_weights, adapter_sites
from gesso.checkpoint.parameters import checkpoint_name, is_vision
from gesso.checkpoint.quantize.packed import Weight
from gesso.checkpoint.write import whole
from gesso.checks import shown, strings
from gesso.errors import CheckpointError, InputError
from gesso.files import check_regular, read_json
from gesso.model.transformer import DiffusionGemma

logger = logging.getLogger("gesso")

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PATTERN_CHARS, PATTERN_SECONDS = 10_000, 10.0  # limits of a regular expression in an adapter's file

# --- save ---------------------------------------------------------------------------------------------------------


def save(
    model: DiffusionGemma, directory: Path, settings: LoraSettings, name: str = "default", *, base: str | None = None
) -> None:
    """Write a directory that `peft` loads, completely or not at all. `base` names the checkpoint it belongs to."""
    check_known(model, name)
    changes = {path: lora for path, site in adapter_sites(model).items() if (lora := site.get(name)) is not None}
    for lora in changes.values():
        if (lora.rank, lora.alpha) != (settings.rank, settings.alpha):
            raise InputError(
                f"adapter {name!r} has rank {lora.rank} and alpha {lora.alpha}, but the settings have "
                f"{settings.rank} and {settings.alpha}; save it with its own settings"
            )
    tensors = {}
    for path, prefix in _stored_names(changes).items():
        tensors[f"{prefix}.lora_A.weight"], tensors[f"{prefix}.lora_B.weight"] = _to_file(changes[path])
    # Full module names: a short one ("q_proj") would also match the vision tower, which `peft` cannot wrap.
    names = [checkpoint_name(path) for path in changes]
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "target_modules": [n.removesuffix(".weight") for n in names if n.endswith(".weight")],
        "target_parameters": [n for n in names if not n.endswith(".weight")] or None,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    with whole(directory) as partial:
        save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
        (partial / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _stored_names(paths: Iterable[str]) -> dict[str, str]:
    """Return the prefix of each parameter's tensors in a file.

    `peft` wraps a module once per parameter, in their order: of the experts, `down_proj` is the outer wrapper and
    `gate_up_proj` is under its `base_layer`. A single parameter is always the outer wrapper.
    """
    paths, names = set(paths), {}
    for path in sorted(paths):
        inner = path.endswith(".gate_up_proj") and path.replace("gate_up_proj", "down_proj") in paths
        names[path] = f"base_model.model.{checkpoint_name(path).rpartition('.')[0]}{'.base_layer' if inner else ''}"
    return names


def _to_file(lora: Lora) -> tuple[Tensor, Tensor]:
    """Return matrices as in `peft`: A as [E·L, I], experts outermost, but B as [O, L·E], experts innermost."""
    # Cloned: stored tensors must not share memory.
    a, b = (factor.detach().cpu().float().clone() for factor in (lora.A, lora.B))
    return (a, b) if a.ndim == 2 else (a.flatten(0, 1), b.permute(1, 2, 0).flatten(1).contiguous())


def _from_file(a: Tensor, b: Tensor, weight: Weight, rank: int) -> tuple[Tensor, Tensor]:
    if len(weight.shape) == 3:
        a, b = a.view(-1, rank, a.shape[-1]), b.view(len(b), rank, -1).permute(2, 0, 1)
    return a.float().contiguous(), b.float().contiguous()


def _file_shapes(weight: Weight, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
    *experts, outputs, inputs = weight.shape
    rows = rank * math.prod(experts)
    return (rows, inputs), (outputs, rows)


# --- load ---------------------------------------------------------------------------------------------------------


def load(model: DiffusionGemma, directory: Path, name: str, *, trainable: bool = False) -> LoraSettings:
    """Attach an adapter saved by gesso or `peft`, and activate it. It is frozen unless `trainable`."""
    check_new(model, name)
    stored = read(adaptable_weights(model), directory)
    attach(model, name, stored)
    activate(model, name)
    if trainable:
        train_only(model, name)
    return stored.settings


def read(weights: Mapping[str, Weight], directory: Path) -> StoredAdapter:
    """Return an adapter saved by gesso or `peft` for a model with these `adaptable_weights`.

    It reads no module of the model, so another thread may run the model meanwhile.
    """
    config = read_json(directory / CONFIG)
    rank, alpha = _read_scale(config, directory)
    targets = _read_targets(config, weights, directory / CONFIG)
    paths = [path for path in weights if _is_target(path, targets)]
    stored = _stored_names(paths)
    tensors = _read_tensors(directory / WEIGHTS)
    if wrong := _problems(weights, config, targets, stored, tensors, rank):
        raise CheckpointError(f"cannot load the adapter {directory}:\n  " + "\n  ".join(wrong))
    pairs = {p: (tensors[f"{stored[p]}.lora_A.weight"], tensors[f"{stored[p]}.lora_B.weight"]) for p in paths}
    return StoredAdapter(
        settings=LoraSettings(rank=rank, alpha=alpha, targets=groups_of(paths)),
        factors={path: _from_file(*pair, weights[path], rank) for path, pair in pairs.items()},
        is_tied=_equal_where_tied(weights, pairs),
    )


def _equal_where_tied(weights: Mapping[str, Weight], pairs: Mapping[str, tuple[Tensor, Tensor]]) -> bool:
    """Return whether every weight with two names has the same change under both."""
    first: dict[int, tuple[Tensor, Tensor] | None] = {}
    for path, weight in weights.items():
        pair = pairs.get(path)
        other = first.setdefault(id(weight), pair)
        if (pair is None) != (other is None):
            return False
        if pair is not None and other is not None and not all(map(torch.equal, pair, other)):
            return False
    return True


# Fields of `peft` that gesso reads, and fields without effect on the result: provenance, training, initialization.
_READ = {"peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "target_parameters", "exclude_modules"}
_NO_MATTER = {
    *("base_model_name_or_path", "auto_mapping", "revision", "task_type", "inference_mode", "peft_version"),
    *("lora_dropout", "ensure_weight_tying", "megatron_core", "qalora_group_size", "eva_config", "runtime_config"),
}
_HARMLESS_INITS = (None, True, False, "gaussian", "orthogonal", "eva")  # the others change the base weights too


def _read_scale(config: Mapping[str, Any], directory: Path) -> tuple[int, float]:
    where = directory / CONFIG
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{where}: peft_type is {config.get('peft_type')!r}; gesso supports LORA only")
    for field, value in config.items():
        if field in _READ | _NO_MATTER or not value or (field, value) == ("bias", "none"):
            continue
        if field == "init_lora_weights" and value in _HARMLESS_INITS:
            continue
        raise CheckpointError(f"{where}: {field} = {shown(value)} is not supported; gesso reads plain LoRA of one rank")
    try:
        settings = LoraSettings(rank=config["r"], alpha=config["lora_alpha"])
        if config.get("use_rslora"):  # arXiv 2312.03732 divides by sqrt(rank) where LoRA divides by rank
            settings = replace(settings, alpha=settings.alpha * settings.rank**0.5)
    except KeyError as error:
        raise CheckpointError(f"{where} has no {error.args[0]}") from None
    except InputError as error:
        given = f"r = {shown(config['r'])}, lora_alpha = {shown(config['lora_alpha'])}"
        raise CheckpointError(f"{where}: {given}: {error}") from None
    return settings.rank, settings.alpha


@dataclass(frozen=True)
class TargetNames:
    """Names of modules or parameters. With `endings`, a name may also be the end of one, after a dot."""

    names: frozenset[str]
    endings: bool

    def __contains__(self, name: object) -> bool:
        return name in self.names or (self.endings and not self.names.isdisjoint(_endings(str(name))))


NOTHING = TargetNames(frozenset(), endings=False)


def _endings(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[start:]) for start in range(len(parts))}


def _read_targets(config: Mapping[str, Any], paths: Iterable[str], where: Path) -> dict[str, TargetNames]:
    """Return the fields that choose targets, with patterns replaced by the names they match."""
    parameters = [checkpoint_name(path) for path in paths]
    names = [*parameters, *(name.rpartition(".")[0] for name in parameters)]
    targets: dict[str, TargetNames] = {}
    for field in ("target_modules", "target_parameters", "exclude_modules"):
        given = config.get(field)
        if isinstance(given, str):
            targets[field] = TargetNames(_matched(given, names, f"{where}: {field}"), endings=False)
        else:
            targets[field] = TargetNames(frozenset(strings(given, f"{where}: {field}")), endings=True)
    return targets


# Python's regular expressions, as in `peft`. They can backtrack for years and cannot be interrupted, so they run in a
# process that can be killed. Rust's do not backtrack, but have no look-around, which `peft` allows.
_MATCHER = """
import json, re, sys
pattern, names = json.load(sys.stdin)
try:
    pattern = re.compile(pattern)
except (re.error, OverflowError, RecursionError) as error:
    sys.exit(f"{type(error).__name__}: {error}")
json.dump([name for name in names if pattern.fullmatch(name)], sys.stdout)
"""


def _matched(pattern: str, names: list[str], where: str) -> frozenset[str]:
    """Return the names that fully match a pattern."""
    if len(pattern) > PATTERN_CHARS:
        raise CheckpointError(f"{where} has {len(pattern):,} characters; at most {PATTERN_CHARS:,} are allowed")
    try:
        run = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _MATCHER],
            input=json.dumps([pattern, names]).encode(),
            capture_output=True,
            timeout=PATTERN_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise CheckpointError(
            f"{where} = {shown(pattern)} takes longer than {PATTERN_SECONDS:g} s to match; give a list of names"
        ) from None
    if run.returncode:
        problem = run.stderr.decode("utf-8", "replace").strip().splitlines()
        raise CheckpointError(
            f"{where} = {shown(pattern)} is not a regular expression ({problem[-1] if problem else 'no reason given'})"
        )
    return frozenset(json.loads(run.stdout))


def _is_target(path: str, targets: Mapping[str, TargetNames]) -> bool:
    parameter = checkpoint_name(path)
    module, _, leaf = parameter.rpartition(".")
    if parameter in targets.get("target_parameters", NOTHING):
        return True
    chosen = leaf == "weight" and module in targets.get("target_modules", NOTHING)
    return chosen and module not in targets.get("exclude_modules", NOTHING)


def _problems(
    weights: Mapping[str, Weight],
    config: Mapping[str, Any],
    targets: Mapping[str, TargetNames],
    stored: Mapping[str, str],
    tensors: dict[str, Tensor],
    rank: int,
) -> list[str]:
    """Return why the tensors of an adapter do not fit its configuration or the model."""
    wrong = []
    vision = [name for name in tensors if is_vision(name.removeprefix("base_model.model."))]
    if vision:
        logger.warning("%d adapter tensors of the vision tower are ignored: adapters change the text only", len(vision))
    names = [checkpoint_name(path) for path in weights]
    modules = [name.removesuffix(".weight") for name in names if name.endswith(".weight")]
    # Sets: a file may name hundreds of targets, and a server does this while it generates.
    possible_endings = {
        "target_modules": set[str]().union(*map(_endings, modules)),
        "target_parameters": set[str]().union(*map(_endings, names)),
    }
    for field, endings in possible_endings.items():
        given = config.get(field) or []
        if isinstance(given, str):
            unmatched = [] if any(_is_target(path, {field: targets[field]}) for path in weights) else [given]
        else:
            unmatched = [target for target in given if target not in endings]
        for target in unmatched:
            if not any(target in name for name in vision):
                wrong.append(f"{field}: {shown(target)} matches nothing in this model that can have an adapter")
    if not stored and not wrong:
        wrong.append("it has no targets: neither target_modules nor target_parameters")
    expected: dict[str, tuple[int, int]] = {}
    for path, prefix in stored.items():
        shapes = _file_shapes(weights[path], rank)
        expected |= {f"{prefix}.lora_{factor}.weight": shape for factor, shape in zip("AB", shapes, strict=True)}
    if missing := expected.keys() - tensors.keys():
        wrong.append(f"missing tensors: {_some(missing)}")
    if surplus := tensors.keys() - expected.keys() - set(vision):
        wrong.append(f"surplus tensors that this model cannot use: {_some(surplus)}")
    for name in sorted(expected.keys() & tensors.keys()):
        tensor = tensors[name]
        if tuple(tensor.shape) != expected[name]:
            wrong.append(f"tensor {name} has shape {list(tensor.shape)}, this model expects {list(expected[name])}")
        elif tensor.dtype not in FLOATS:
            dtype = str(tensor.dtype).removeprefix("torch.")
            wrong.append(f"tensor {name} is stored as {dtype}, expected float32, bfloat16, float16 or float64")
        elif not tensor.isfinite().all():
            wrong.append(f"tensor {name} holds NaN or infinite values")
    return wrong


def _some(names: Iterable[str], most: int = 5) -> str:
    names = sorted(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        check_regular(file)
        return load_file(file)
    except FileNotFoundError:
        raise CheckpointError(f"{file} does not exist; an adapter needs {CONFIG} and {WEIGHTS}") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise CheckpointError(f"{file} is corrupt or cut off ({error})") from None
