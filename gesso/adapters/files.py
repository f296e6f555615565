"""Adapters of a model: choose what they change, read and write them as `peft` does, fold them into the weights.

Encoder and decoder share their weights, and one adapter acts on both. In `transformers` they are separate modules with
tied parameters, and `peft` wraps each by itself: an adapter under `model.decoder…` alone leaves the encoder, and with
it every key and value of the prompt, unchanged. So a file holds every change twice, under `model.decoder…` and under
`model.encoder.language_model…`, with equal tensors. Where `peft` did the training the two differ, since it starts and
trains them apart; such an adapter is loaded as it is (`_split`), but cannot be merged: there is one weight for two
changes. (`peft`'s own `merge_and_unload` adds both to the one tied weight, which is wrong for either kind.)

E experts, O out, I in, L rank.
"""

import copy
import json
import math
import re
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

from gesso.adapters.lora import Adapters, Lora, adapter_sites, attached, make_adaptable, weight_of
from gesso.checkpoint.huggingface import checkpoint_name, logger
from gesso.checkpoint.quantize.packed import Packed, Weight
from gesso.checkpoint.vision import is_vision
from gesso.checkpoint.write import whole
from gesso.checks import shown, strings
from gesso.errors import CheckpointError, InputError
from gesso.files import check_regular, read_json
from gesso.model.transformer import DiffusionGemma

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MOST_RANK, MOST_ALPHA = 2**16, 1e9
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PATTERN_CHARS, PATTERN_SECONDS = 10_000, 10.0  # of a regular expression in an adapter's file
# A group of weights, by the names of its parameters.
TARGETS = {
    "attention": r".*\.self_attn\.[qkvo]_proj\.weight",
    "mlp": r".*\.mlp\.(gate|up|down)_proj\.weight",
    "self_conditioning": r"self_conditioning\.(gate|up|down)_proj\.weight",
    "router": r".*\.router\.proj\.weight",
    "experts": r".*\.experts\.(gate_up|down)_proj",
}


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = tuple(TARGETS)

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or not 0 < self.rank <= MOST_RANK:
            raise InputError(
                f"the rank of an adapter must be a positive integer up to {MOST_RANK:,}, got {shown(self.rank)}"
            )
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not 0 < self.alpha <= MOST_ALPHA:
            raise InputError(
                f"alpha of an adapter must be a positive number up to {MOST_ALPHA:g}, got {shown(self.alpha)}"
            )
        if isinstance(self.targets, str) or not self.targets:
            raise InputError(f"targets must be a tuple of one or more of {', '.join(TARGETS)}, got {self.targets!r}")
        if unknown := [target for target in self.targets if target not in TARGETS]:
            raise InputError(f"unknown adapter targets {unknown}; known are {', '.join(TARGETS)}")


# --- attach, choose, merge ----------------------------------------------------------------------------------------


def add(model: DiffusionGemma, settings: LoraSettings, name: str = "default", seed: int = 0) -> None:
    """A new adapter, active and alone trainable. B is zero, so the model is unchanged at first."""
    _check_new(model, name)
    make_adaptable(model)
    generator = torch.Generator().manual_seed(seed)
    made: dict[int, Lora] = {}  # by weight: what encoder and decoder share gets one change, not two
    for path, site in adapter_sites(model).items():
        if not _groups([path], settings.targets):
            continue
        weight = weight_of(model, path)
        if id(weight) not in made:
            lora = made[id(weight)] = Lora(weight, settings.rank, settings.alpha)
            bound = weight.shape[-1] ** -0.5  # as `peft`: Kaiming uniform with a = sqrt(5)
            noise = torch.rand(lora.A.shape, generator=generator)
            lora.A.data.copy_((2 * noise - 1) * bound)
        site.put(name, made[id(weight)])
    activate(model, name)
    _train_only(model, name)


def activate(model: DiffusionGemma, name: str | None) -> None:
    """Let this adapter act and no other; None: the base model alone.

    Keys and values cached under another adapter are not those of this one: start from an empty cache.
    """
    if name is not None:
        _check_known(model, name)
    for site in adapter_sites(model).values():
        site.active = name


@torch.no_grad()
def merge(model: DiffusionGemma, name: str = "default") -> None:
    """Fold an adapter into the base weights, each of them once, and remove it: a plain model is left."""
    _check_known(model, name)
    if model.config.quantization:
        raise InputError(
            f"cannot merge {name!r} into weights quantized to {model.config.quantization}: rounding would take most of "
            "it away; merge it into the checkpoint they were made from, and quantize that (gesso quantize)"
        )
    if others := [other for other in attached(model) if other != name]:
        raise InputError(
            f"cannot merge {name!r} while {others} are attached: they were made for the weights as they are now; "
            "load the model with this adapter alone"
        )
    sites = adapter_sites(model)
    by_weight: dict[int, list[str]] = {}
    for path in sites:
        by_weight.setdefault(id(weight_of(model, path)), []).append(path)
    for paths in by_weight.values():
        if len({None if (lora := sites[path].get(name)) is None else id(lora.A) for path in paths}) > 1:
            raise InputError(
                f"adapter {name!r} changes {' and '.join(map(checkpoint_name, paths))} differently, but they are one "
                "weight: it cannot be merged. Use it unmerged, or train one with gesso, where both share their changes"
            )
    for paths in by_weight.values():
        if (lora := sites[paths[0]].get(name)) is not None:
            _fold(lora, model.get_parameter(paths[0]).detach())
    for site in set(sites.values()):
        if site.get(name) is not None:
            site.drop(name)
    if model.config.tie_word_embeddings:
        model.encoder.layers = model.decoder.layers  # undoes `_split`


def _fold(lora: Lora, weight: Tensor) -> None:
    """W + s·B·A in float32, expert by expert: all experts of a 26B layer at once would be 2 GB more."""
    matrices = (tensor.detach().view(-1, *tensor.shape[-2:]) for tensor in (weight, lora.A, lora.B))
    for w_OI, a_LI, b_OL in zip(*matrices, strict=True):
        w_OI.copy_(w_OI.float() + lora.scale * (b_OL.float() @ a_LI.float()))


def _split(model: DiffusionGemma) -> None:
    """Give the encoder layers of its own over the same weights, so that it can be changed apart from the decoder.

    The modules are copied, the weights are not. Text and canvases then take a pass each.
    """
    if model.is_tied:
        packed = (module for module in model.modules() if isinstance(module, Packed))
        shared: dict[int, Any] = {id(weight): weight for weight in (*model.parameters(), *packed)}
        model.encoder.layers = copy.deepcopy(model.decoder.layers, shared)


def _train_only(model: DiffusionGemma, name: str) -> None:
    model.requires_grad_(False)
    for site in adapter_sites(model).values():
        if (lora := site.get(name)) is not None:
            lora.requires_grad_(True)


def _check_new(model: DiffusionGemma, name: str) -> None:
    if not re.fullmatch(r"[\w-]+", name):
        raise InputError(f"an adapter's name is made of letters, digits, - and _, got {name!r}")
    if name in attached(model):
        raise InputError(f"the model already has an adapter called {name!r}; give this one another name")


def _check_known(model: DiffusionGemma, name: str) -> None:
    if name not in (known := attached(model)):
        raise InputError(f"the model has no adapter called {name!r}; it has {', '.join(known) or 'none'}")


def _groups(paths: Iterable[str], groups: Iterable[str] = TARGETS) -> tuple[str, ...]:
    """Those of the target groups that some of these parameters belong to."""
    paths = list(paths)
    return tuple(group for group in groups if any(re.fullmatch(TARGETS[group], path) for path in paths))


# --- save ---------------------------------------------------------------------------------------------------------


def save(
    model: DiffusionGemma, directory: Path, settings: LoraSettings, name: str = "default", *, base: str | None = None
) -> None:
    """Write a directory that `peft` loads; it appears whole or not at all. `base` names the checkpoint it is for."""
    _check_known(model, name)
    changes = {path: lora for path, site in adapter_sites(model).items() if (lora := site.get(name)) is not None}
    for lora in changes.values():
        if (lora.rank, lora.alpha) != (settings.rank, settings.alpha):
            raise InputError(
                f"adapter {name!r} has rank {lora.rank} and alpha {lora.alpha}, the settings to save it with say "
                f"{settings.rank} and {settings.alpha}"
            )
    tensors = {}
    for path, prefix in _stored_names(changes).items():
        tensors[f"{prefix}.lora_A.weight"], tensors[f"{prefix}.lora_B.weight"] = _to_file(changes[path])
    # Every module by its full name: a short one ("q_proj") would match the vision tower too, which `peft` cannot wrap.
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
    """The prefix of each parameter's tensors in a file.

    `peft` puts one wrapper on a module for each of its parameters, in their order, so the experts' `down_proj` is
    outside and their `gate_up_proj` under `base_layer`; the only one, whichever it is, is outside.
    """
    paths, names = set(paths), {}
    for path in sorted(paths):
        inner = path.endswith(".gate_up_proj") and path.replace("gate_up_proj", "down_proj") in paths
        names[path] = f"base_model.model.{checkpoint_name(path).rpartition('.')[0]}{'.base_layer' if inner else ''}"
    return names


def _to_file(lora: Lora) -> tuple[Tensor, Tensor]:
    """`peft` has matrices only: A as [E·L, I], experts outermost, but B as [O, L·E], experts innermost."""
    a, b = (factor.detach().cpu().float().clone() for factor in (lora.A, lora.B))  # cloned: no two may share memory
    return (a, b) if a.ndim == 2 else (a.flatten(0, 1), b.permute(1, 2, 0).flatten(1).contiguous())


def _from_file(a: Tensor, b: Tensor, lora: Lora) -> tuple[Tensor, Tensor]:
    if lora.A.ndim == 2:
        return a, b
    return a.view(lora.A.shape), b.view(len(b), lora.rank, -1).permute(2, 0, 1)


def _file_shapes(weight: Weight, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
    *experts, outputs, inputs = weight.shape
    rows = rank * math.prod(experts)
    return (rows, inputs), (outputs, rows)


# --- load ---------------------------------------------------------------------------------------------------------


def load(model: DiffusionGemma, directory: Path, name: str, *, trainable: bool = False) -> LoraSettings:
    """Attach an adapter that gesso or `peft` saved, and let it act. Frozen, unless it is to be trained further."""
    _check_new(model, name)
    config = read_json(directory / CONFIG)
    rank, alpha = _read_scale(config, directory)
    make_adaptable(model)
    sites = adapter_sites(model)
    targets = _read_targets(config, sites, directory / CONFIG)
    paths = [path for path in sites if _is_target(path, targets)]
    stored = _stored_names(paths)
    tensors = _read_tensors(directory / WEIGHTS)
    if wrong := _problems(model, config, targets, stored, tensors, rank):
        raise CheckpointError(f"cannot load the adapter {directory}:\n  " + "\n  ".join(wrong))

    pairs = {p: (tensors[f"{stored[p]}.lora_A.weight"], tensors[f"{stored[p]}.lora_B.weight"]) for p in paths}
    tied = _equal_where_tied(model, sites, pairs)
    if not tied:
        _split(model)
        sites = adapter_sites(model)
    made: dict[object, Lora] = {}
    for path in paths:
        weight = weight_of(model, path)
        key = id(weight) if tied else path
        if key not in made:
            lora = made[key] = Lora(weight, rank, alpha)
            for factor, tensor in zip((lora.A, lora.B), _from_file(*pairs[path], lora), strict=True):
                factor.data.copy_(tensor)
            lora.requires_grad_(False)
        sites[path].put(name, made[key])
    activate(model, name)
    if trainable:
        _train_only(model, name)
    return LoraSettings(rank=rank, alpha=alpha, targets=_groups(paths))


def _equal_where_tied(
    model: DiffusionGemma, sites: Mapping[str, Adapters], pairs: Mapping[str, tuple[Tensor, Tensor]]
) -> bool:
    """Whether every weight that has two names is changed in the same way under both."""
    first: dict[int, tuple[Tensor, Tensor] | None] = {}
    for path in sites:
        pair = pairs.get(path)
        other = first.setdefault(id(weight_of(model, path)), pair)
        if (pair is None) != (other is None):
            return False
        if pair is not None and other is not None and not all(map(torch.equal, pair, other)):
            return False
    return True


# What `peft` writes and what has no part in the result: provenance, training, and how the factors were first filled.
_READ = {"peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "target_parameters", "exclude_modules"}
_NO_MATTER = {
    *("base_model_name_or_path", "auto_mapping", "revision", "task_type", "inference_mode", "peft_version"),
    *("lora_dropout", "ensure_weight_tying", "megatron_core", "qalora_group_size", "eva_config", "runtime_config"),
}
_HARMLESS_INITS = (None, True, False, "gaussian", "orthogonal", "eva")  # the others change the base weights too


def _read_scale(config: Mapping[str, Any], directory: Path) -> tuple[int, float]:
    where = directory / CONFIG
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{where}: peft_type is {config.get('peft_type')!r}; gesso knows LORA only")
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


# A list of names and their endings, or the full names that a pattern matched.
Wanted = list[str] | frozenset[str]


def _read_targets(config: Mapping[str, Any], paths: Iterable[str], where: Path) -> dict[str, Wanted]:
    """Return the fields that choose targets, with patterns replaced by the names they match."""
    parameters = [checkpoint_name(path) for path in paths]
    names = [*parameters, *(name.rpartition(".")[0] for name in parameters)]
    found: dict[str, Wanted] = {}
    for field in ("target_modules", "target_parameters", "exclude_modules"):
        given = config.get(field)
        if isinstance(given, str):
            found[field] = _matched(given, names, f"{where}: {field}")
        else:
            found[field] = strings(given, f"{where}: {field}")
    return found


# As `peft` matches. Python's regular expressions can backtrack for years and cannot be interrupted, so they run in a
# process that can be ended. Rust's, which cannot backtrack, have no look-around, and patterns that `peft` takes do.
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
    """Return the names that match a pattern as a whole."""
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


def _is_target(path: str, targets: Mapping[str, Wanted]) -> bool:
    parameter = checkpoint_name(path)
    module, _, leaf = parameter.rpartition(".")
    if _matches(targets.get("target_parameters", []), parameter):
        return True
    chosen = leaf == "weight" and _matches(targets.get("target_modules", []), module)
    return chosen and not _matches(targets.get("exclude_modules", []), module)


def _matches(wanted: Wanted, name: str) -> bool:
    if isinstance(wanted, frozenset):
        return name in wanted
    return any(name == one or name.endswith(f".{one}") for one in wanted)


def _problems(
    model: DiffusionGemma,
    config: Mapping[str, Any],
    targets: Mapping[str, Wanted],
    stored: Mapping[str, str],
    found: dict[str, Tensor],
    rank: int,
) -> list[str]:
    wrong = []
    seeing = [name for name in found if is_vision(name.removeprefix("base_model.model."))]
    if seeing:
        logger.warning("text only: %d adapter tensors of the vision tower are left out", len(seeing))
    for field in ("target_modules", "target_parameters"):
        given = config.get(field) or []
        for target in [given] if isinstance(given, str) else given:
            one: dict[str, Wanted] = {field: targets[field] if isinstance(given, str) else [target]}
            if not any(_is_target(path, one) for path in adapter_sites(model)) and not any(target in n for n in seeing):
                wrong.append(f"{field}: {shown(target)} names nothing in this model that can have an adapter")
    if not stored and not wrong:
        wrong.append("it has no targets: neither target_modules nor target_parameters")
    expected: dict[str, tuple[int, int]] = {}
    for path, prefix in stored.items():
        shapes = _file_shapes(weight_of(model, path), rank)
        expected |= {f"{prefix}.lora_{factor}.weight": shape for factor, shape in zip("AB", shapes, strict=True)}
    if missing := expected.keys() - found.keys():
        wrong.append(f"missing tensors: {_some(missing)}")
    if surplus := found.keys() - expected.keys() - set(seeing):
        wrong.append(f"surplus tensors that this model has no place for: {_some(surplus)}")
    for name in sorted(expected.keys() & found.keys()):
        if tuple(found[name].shape) != expected[name]:
            wrong.append(
                f"tensor {name} has shape {list(found[name].shape)}, this model asks for {list(expected[name])}"
            )
        elif found[name].dtype not in FLOATS:
            dtype = str(found[name].dtype).removeprefix("torch.")
            wrong.append(f"tensor {name} is stored as {dtype}, expected float32, bfloat16, float16 or float64")
        elif not found[name].isfinite().all():
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
