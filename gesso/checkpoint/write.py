"""Write checkpoints in the Hugging Face layout, atomically: a directory that `transformers` loads."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gesso.checkpoint.card import MERGE
from gesso.checkpoint.parameters import checkpoint_name, empty_model, parameters
from gesso.checkpoint.safetensors import INDEX, SINGLE, opened, weight_files
from gesso.checkpoint.vision import PREFIX, vision_tensors
from gesso.errors import CheckpointError, InputError
from gesso.files import full_disk, lock_of, locked, remove_abandoned, replacing_directory
from gesso.model.config import Config
from gesso.model.quantization_config import LAYERS, MIXED, TOOLS

if TYPE_CHECKING:
    from torch import Tensor

    from gesso.model.transformer import DiffusionGemma


def save(
    model: "DiffusionGemma",
    directory: Path,
    *,
    source: Path | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
    shard_bytes: int = 5 * 10**9,
) -> None:
    """Write a model to a new or empty directory.

    `source` is the checkpoint of the model: its tokenizer files are copied, and so is its vision tower if the model was
    loaded without: `transformers` requires one. Without a source, that is written as zeros. `files` are further text
    files by name.
    """
    from gesso.checkpoint.streamed import check_resident

    check_resident(model, "save the model")
    known = {name for name, _ in empty_model(model.config).named_parameters()}
    if surplus := [name for name, _ in model.named_parameters() if name not in known and not name.startswith(PREFIX)]:
        raise InputError(
            f"the model has weights that a checkpoint cannot hold, such as {surplus[0]}. If these are adapters, "
            "merge one first (gesso.adapters.merge), or save the adapter alone (gesso.adapters.save)"
        )
    tensors = _text_tensors(model)
    is_foreign = (model.config.quantization or "").removesuffix(LAYERS) in (*TOOLS, MIXED)
    if is_foreign or _shapes(tensors) != _own_layout(model.config):
        raise InputError(
            f"cannot save a model with the formats of {model.config.quantization}; load the checkpoint that it "
            "was quantized from"
        )
    raw = {**model.config.raw, "dtype": str(model.dtype).removeprefix("torch.")}
    raw["architectures"] = ["DiffusionGemmaForBlockDiffusion"]
    with whole(directory) as partial:
        write_companions(partial, raw, source)
        for name, text in files.items():
            (partial / name).write_text(text, encoding="utf-8")
        write_shards(chain(tensors.items(), _vision_tensors(model, source)), partial, shard_bytes)


@contextmanager
def whole(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to `directory` if the block succeeds, and removed if it fails."""
    directory = directory.expanduser().resolve()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{directory} exists and is not empty; choose another directory")
    with alone(directory), replacing_directory(directory) as partial:
        yield partial
        for file in partial.iterdir():  # safetensors makes them accessible to the user only
            if file.is_file():
                file.chmod(0o644)


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """Keep other processes from writing a file or directory, and remove what a killed one has left of it.

    If the disk is full, raise a CheckpointError.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock_of(target)) as is_locked:
            if is_locked:
                remove_abandoned(target)
            yield
    except Exception as error:
        reason = full_disk(error)
        if reason is None:
            raise
        raise CheckpointError(f"{target} cannot be written: {reason}; free some space and repeat") from error


def write_companions(directory: Path, raw: Mapping[str, Any], source: Path | None) -> None:
    """Write all but the weights: `raw` as config.json, and the source's tokenizer, template and generation settings.

    The origin of a merged source is left out: it is not that of a model with other weights.
    """
    for file in () if source is None else sorted(source.iterdir()):
        others = file.name not in ("config.json", INDEX, MERGE)
        if others and file.is_file() and file.suffix in (".json", ".jinja", ".model"):
            shutil.copyfile(file, directory / file.name)
    (directory / "config.json").write_text(json.dumps(dict(raw), indent=2) + "\n", encoding="utf-8")


def write_shards(tensors: Iterable[tuple[str, "Tensor"]], directory: Path, shard_bytes: int) -> None:
    """Write tensors into files of at most `shard_bytes`, or of one larger tensor, and an index if there are several.

    A file is written when it is full, under a temporary name: the final name contains the number of files.
    """
    from safetensors.torch import save_file

    shards: list[list[str]] = []  # the names of the tensors in each
    files: list[Path] = []

    def flush() -> None:
        file = directory / f"{len(files)}.partial"
        save_file(pending, file, metadata={"format": "pt"})
        files.append(file)
        shards.append(list(pending))
        pending.clear()

    pending: dict[str, Tensor] = {}
    size = 0  # of the pending tensors
    total = 0
    for name, tensor in tensors:
        if pending and size + tensor.nbytes > shard_bytes:
            flush()
            size = 0
        pending[name] = tensor.detach().cpu().contiguous()
        size += tensor.nbytes
        total += tensor.nbytes
    flush()
    if len(files) == 1:
        files[0].rename(directory / SINGLE)
        return
    names = [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    for file, file_name in zip(files, names, strict=True):
        file.rename(directory / file_name)
    weight_map = {name: file_name for file_name, shard in zip(names, shards, strict=True) for name in shard}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _text_tensors(model: "DiffusionGemma") -> dict[str, "Tensor"]:
    """Return the tensors of the text model by their names in a file."""
    from gesso.checkpoint.quantize.formats import stored_name
    from gesso.checkpoint.quantize.packed import Packed

    text = ((name, tensor) for name, tensor in model.named_parameters() if not name.startswith(PREFIX))
    tensors: dict[str, Tensor] = {checkpoint_name(name): tensor for name, tensor in text}
    for name, module in model.named_modules():
        if isinstance(module, Packed):
            tensors |= {stored_name(checkpoint_name(name), key): tensor for key, tensor in module.tensors.items()}
    return tensors


def _shapes(tensors: Mapping[str, "Tensor"]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _own_layout(config: Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that a checkpoint with this configuration has."""
    from gesso.checkpoint.quantize.formats import format_of

    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in parameters(config).items():
        format = None if config.quantization is None else format_of(name, shape, config.quantization)
        stored = {} if format is None else format.stored(name, shape)
        shapes |= {key: size for key, (size, _) in stored.items()} or {name: shape}
    return shapes


def _vision_tensors(model: "DiffusionGemma", source: Path | None) -> Iterator[tuple[str, "Tensor"]]:
    """Yield the vision tensors of the model, or else those of `source`, and zeros for those that it lacks."""
    import torch

    if model.vision is not None:
        for name, parameter in model.vision.named_parameters(prefix=PREFIX.rstrip(".")):
            yield checkpoint_name(name), parameter.to(model.dtype)
        return
    files: dict[str, Path] = {}
    for file in weight_files(source) if source is not None else ():
        with opened(file) as stored:
            files |= dict.fromkeys(stored.keys(), file)
    for name, shape in vision_tensors(model.config).items():
        if name in files:
            with opened(files[name]) as stored:
                yield name, stored.get_tensor(name).to(model.dtype)
        else:
            yield name, torch.zeros(shape, dtype=model.dtype)
