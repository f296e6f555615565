"""Write checkpoints in the Hugging Face layout: a directory that `transformers` loads, whole or not at all."""

import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gesso.checkpoint.huggingface import INDEX, SINGLE, checkpoint_name, opened, weight_files
from gesso.checkpoint.vision import vision_tensors
from gesso.errors import InputError

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
    """Write a directory that `transformers` loads. It appears whole or not at all.

    `source` is the checkpoint the model came from: its tokenizer files are copied, and its vision tensors, which
    `transformers` insists on. Without one, the vision tower is written as zeros. `files` are further texts by name.
    """
    from gesso.adapters.lora import attached

    if names := attached(model):
        raise InputError(
            f"the model has adapters ({', '.join(names)}); merge one first (gesso.adapters.files.merge), "
            "or save the adapter alone (gesso.adapters.files.save)"
        )
    raw = {**model.config.raw, "dtype": str(model.dtype).removeprefix("torch.")}
    raw["architectures"] = ["DiffusionGemmaForBlockDiffusion"]
    with whole(directory) as partial:
        write_companions(partial, raw, source)
        for name, text in files.items():
            (partial / name).write_text(text, encoding="utf-8")
        _write_weights(model, partial, source, shard_bytes)


@contextmanager
def whole(directory: Path) -> Iterator[Path]:
    """A directory to write into, which takes this name when all went well and is gone otherwise."""
    directory = directory.expanduser().resolve()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{directory} exists and is not empty; choose another place to save")
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    partial.chmod(0o755)  # mkdtemp's are for the user alone
    try:
        yield partial
        if directory.exists():
            directory.rmdir()
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_companions(directory: Path, raw: Mapping[str, Any], source: Path | None) -> None:
    """All but the weights: `raw` as config.json, and the source's tokenizer, template and generation settings."""
    for file in () if source is None else sorted(source.iterdir()):
        if file.is_file() and file.suffix in (".json", ".jinja", ".model") and file.name not in ("config.json", INDEX):
            shutil.copyfile(file, directory / file.name)
    (directory / "config.json").write_text(json.dumps(dict(raw), indent=2) + "\n", encoding="utf-8")


def _write_weights(model: "DiffusionGemma", directory: Path, source: Path | None, shard_bytes: int) -> None:
    from safetensors.torch import save_file

    own = _own(model)
    sizes = {name: parameter.nbytes for name, parameter in own.items()}
    for name, shape in vision_tensors(model.config).items():
        sizes[name] = math.prod(shape) * model.dtype.itemsize
    shards = _shards(sizes, shard_bytes)
    names = shard_names(len(shards))
    for file_name, shard in zip(names, shards, strict=True):
        tensors = {name: own[name].detach().cpu().contiguous() for name in shard if name in own}
        tensors |= _vision(model, [name for name in shard if name not in own], source)
        save_file(tensors, directory / file_name, metadata={"format": "pt"})
    write_index(directory, shards, sum(sizes.values()))


def _own(model: "DiffusionGemma") -> dict[str, "Tensor"]:
    """The model's tensors by the names they are stored under."""
    from gesso.checkpoint.quantize.formats import stored_name
    from gesso.checkpoint.quantize.packed import Packed

    own: dict[str, Tensor] = {checkpoint_name(name): parameter for name, parameter in model.named_parameters()}
    for name, module in model.named_modules():
        if isinstance(module, Packed):
            own |= {stored_name(checkpoint_name(name), key): tensor for key, tensor in module.tensors.items()}
    return own


def shard_names(count: int) -> list[str]:
    if count == 1:
        return [SINGLE]
    return [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]


def write_index(directory: Path, shards: Sequence[Sequence[str]], total_size: int) -> None:
    """Which file holds which tensor; one file needs no index."""
    if len(shards) == 1:
        return
    files = zip(shard_names(len(shards)), shards, strict=True)
    weight_map = {name: file_name for file_name, shard in files for name in shard}
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
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
