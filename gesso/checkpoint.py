"""Find, load and save checkpoints: the Hugging Face layout, in and out.

Weights go from disk to their device one tensor at a time, so that the peak is the model plus one tensor. Everything
that can be wrong with a directory is looked up in the file headers first and reported together.
"""

import json
import logging
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gesso import box
from gesso.config import Config, read_json
from gesso.errors import CheckpointError, InputError
from gesso.vision import is_vision, vision_tensors

if TYPE_CHECKING:  # torch takes a second to import; `gesso info` on a bad path should not
    import torch
    from torch import Tensor

    from gesso.model.transformer import DiffusionGemma

logger = logging.getLogger("gesso")

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model"]
LONG_LOAD = 10**9  # bytes from which on a progress bar is worth showing


# --- find ---------------------------------------------------------------------------------------------------------


def find(name: str | Path | None) -> Path:
    """The directory of a checkpoint: one in the box (None is the base), a local one, or a hub name.

    A name in the box is that one wherever it is said: a directory of the same name is `./` and the name, or a `Path`.
    What comes from the hub is downloaded once and resumed if cut off.
    """
    if name is None:
        return box.directory()
    if isinstance(name, str) and name in box.DIRECTORIES:
        return box.directory(name)
    path = Path(name).expanduser()
    if str(name) and path.is_dir():
        return path
    if path.is_file():
        raise CheckpointError(f"{path} is a file; give the checkpoint's directory")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", str(name)):
        raise CheckpointError(
            f"no directory {str(name)!r}, and it is neither a hub name of the form owner/model nor in the box "
            f"({', '.join(box.DIRECTORIES)})"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(name), allow_patterns=PATTERNS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"{name!r} is not a local directory and could not be fetched from the hub ({type(error).__name__}): "
            f"{str(error).splitlines()[0]} Check the name, the network, HF_TOKEN for gated models and HF_HUB_OFFLINE."
        ) from error


def weight_files(directory: Path) -> list[Path]:
    """The files that hold the weights, as the index names them; missing ones included."""
    if (directory / INDEX).exists():
        names = read_json(directory / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise CheckpointError(f"{directory / INDEX} has no weight_map")
        if wrong := [name for name in names.values() if not _is_plain(name)]:
            raise CheckpointError(f"{directory / INDEX} names {wrong[0]!r}, which is no file of this directory")
        return [directory / name for name in sorted(set(names.values()))]
    return [directory / SINGLE] if (directory / SINGLE).exists() else []


def _is_plain(name: Any) -> bool:
    """The name of a file, not a way to somewhere else."""
    return isinstance(name, str) and name != "" and Path(name).name == name


# --- what a directory holds, and what is wrong with it ------------------------------------------------------------


def checkpoint_name(name: str) -> str:
    """Our parameter name in the checkpoint's words."""
    for pattern, words in _RENAMES:
        name = re.sub(pattern, words, name)
    return name


_RENAMES = (
    (r"^lm_head$", "lm_head.weight"),
    (r"\.layer_scalars\.(\d+)$", r".layers.\1.layer_scalar"),
    (r"^encoder\.", "model.encoder.language_model."),
    (r"^(decoder|self_conditioning)\.", r"model.\1."),
    (r"^model\.self_conditioning\.", "model.decoder.self_conditioning."),
)


def problems(directory: Path, config: Config) -> list[str]:
    """Everything that would keep the weights from loading, from the headers alone; empty when all is well."""
    files = weight_files(directory)
    if not files:
        return [f"no weights: neither {SINGLE} nor {INDEX} in {directory}"]
    found, wrong = {}, []
    for file in files:
        try:
            found.update(_header(file))
        except CheckpointError as error:
            wrong.append(str(error))
    if wrong:  # with a file unread, every tensor in it would seem missing too
        return wrong
    expected = _expected_shapes(config)
    missing = [name for name in expected if name not in found]
    surplus = [name for name in found if name not in expected and not is_vision(name)]
    if missing:
        wrong.append(f"missing tensors: {_some(missing)}")
    if surplus:
        wrong.append(f"surplus tensors that this configuration has no place for: {_some(surplus)}")
    for name, shape in expected.items():
        if name in found and found[name] != shape:
            wrong.append(f"tensor {name} has shape {list(found[name])}, the configuration asks for {list(shape)}")
    return wrong


def _expected_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    return {checkpoint_name(name): tuple(p.shape) for name, p in empty_model(config).named_parameters()}


def empty_model(config: Config) -> "DiffusionGemma":
    """The model without weights: names and shapes on the meta device."""
    import torch

    from gesso.model.transformer import DiffusionGemma

    with torch.device("meta"):
        return DiffusionGemma(config)


def _header(file: Path) -> dict[str, tuple[int, ...]]:
    with opened(file) as tensors:
        return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except FileNotFoundError:
        raise CheckpointError(f"weight file {file.name} is missing from {file.parent}; download it again") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"weight file {file} is corrupt or cut off ({error}); download it again") from None


def _some(names: Iterable[str], most: int = 5) -> str:
    names = sorted(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# --- load ---------------------------------------------------------------------------------------------------------


def load(directory: Path, config: Config, device: "torch.device", dtype: "torch.dtype") -> "DiffusionGemma":
    import torch

    if wrong := problems(directory, config):
        raise CheckpointError(f"cannot load {directory}:\n  " + "\n  ".join(wrong))
    model = empty_model(config)
    ours = {checkpoint_name(name): name for name, _ in model.named_parameters()}
    vision, sees = 0, False
    for name, tensor in _tensors(directory):
        if is_vision(name):
            vision += 1
            sees = sees or bool(tensor.any())  # `save` writes zeros for a tower that never was
            continue
        if tensor.is_floating_point() and not torch.stack(tensor.aminmax()).isfinite().all():
            raise CheckpointError(f"tensor {name} in {directory} holds NaN or infinite values; the file is damaged")
        # copy=True: a tensor that still points into the mapped file would change with it
        assign(model, ours[name], tensor.to(device=device, dtype=dtype, copy=True))
    if sees:
        logger.warning("text only: %d tensors of the vision tower are left out", vision)
    return model.eval()


def _tensors(directory: Path) -> Iterator[tuple[str, "Tensor"]]:
    """Every tensor in turn. Each is read through its own mapping, so that the pages of the last one are let go."""
    files = weight_files(directory)
    with _progress(sum(file.stat().st_size for file in files)) as advance:
        for file in files:
            for name in _header(file):
                with opened(file) as tensors:
                    tensor = tensors.get_tensor(name)
                yield name, tensor
                advance(tensor.nbytes)


def assign(model: "DiffusionGemma", name: str, tensor: "Tensor") -> None:
    from torch import nn

    path, _, leaf = name.rpartition(".")
    model.get_submodule(path).register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    if total < LONG_LOAD or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("loading weights"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda amount: bar.advance(task, amount)


# --- save ---------------------------------------------------------------------------------------------------------


def save(
    model: "DiffusionGemma",
    directory: Path,
    *,
    source: Path | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
    shard_bytes: int = 5 * 10**9,
) -> None:
    """Write a directory that `transformers` loads. It appears whole or not at all.

    `source` is the checkpoint the model came from: its tokenizer files are copied, and its vision tensors, which
    `transformers` insists on. Without one, the vision tower is written as zeros. `files` are further texts by name.
    """
    from gesso.model.adapters import attached

    if names := attached(model):
        raise InputError(
            f"the model has adapters ({', '.join(names)}); merge one first (gesso.train.adapters.merge), "
            "or save the adapter alone (gesso.train.adapters.save)"
        )
    directory = directory.expanduser().resolve()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{directory} exists and is not empty; choose another place to save")
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    partial.chmod(0o755)  # mkdtemp's are for the user alone
    try:
        for file in () if source is None else sorted(source.iterdir()):
            if file.suffix in (".json", ".jinja", ".model") and file.name not in ("config.json", INDEX):
                shutil.copyfile(file, partial / file.name)
        for name, text in files.items():
            (partial / name).write_text(text, encoding="utf-8")
        raw = {**model.config.raw, "dtype": str(model.dtype).removeprefix("torch.")}
        raw["architectures"] = ["DiffusionGemmaForBlockDiffusion"]
        (partial / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
        _write_weights(model, partial, source, shard_bytes)
        if directory.exists():
            directory.rmdir()
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_weights(model: "DiffusionGemma", directory: Path, source: Path | None, shard_bytes: int) -> None:
    from safetensors.torch import save_file

    own = {checkpoint_name(name): parameter for name, parameter in model.named_parameters()}
    sizes = {name: parameter.nbytes for name, parameter in own.items()}
    for name, shape in vision_tensors(model.config).items():
        sizes[name] = math.prod(shape) * model.dtype.itemsize
    shards = _shards(sizes, shard_bytes)
    names = [SINGLE]
    if len(shards) > 1:
        names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for file_name, shard in zip(names, shards, strict=True):
        tensors = {name: own[name].detach().cpu().contiguous() for name in shard if name in own}
        tensors |= _vision(model, [name for name in shard if name not in own], source)
        save_file(tensors, directory / file_name, metadata={"format": "pt"})
    if len(shards) > 1:
        weight_map = {name: file_name for file_name, shard in zip(names, shards, strict=True) for name in shard}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _vision(model: "DiffusionGemma", names: list[str], source: Path | None) -> dict[str, "Tensor"]:
    import torch

    tensors: dict[str, Tensor] = {}
    for file in weight_files(source) if source is not None and names else []:
        with opened(file) as stored:
            tensors |= {name: stored.get_tensor(name).to(model.dtype) for name in set(names) & set(stored.keys())}
    shapes = vision_tensors(model.config)
    return {name: tensors.get(name, torch.zeros(shapes[name], dtype=model.dtype)) for name in names}


def _shards(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    used = 0
    for name, size in sizes.items():
        if shards[-1] and used + size > limit:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += size
    return shards
