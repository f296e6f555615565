"""Write checkpoints in the Hugging Face layout, atomically: a directory that `transformers` loads."""

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
    """Write a model to a new or empty directory.

    `source` is the checkpoint of the model: its tokenizer files and its vision tensors, which `transformers` requires,
    are copied. Without a source, the vision tower is written as zeros. `files` are further text files by name.
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
    """Yield a temporary directory that is renamed to `directory` if the block succeeds, and removed if it fails."""
    directory = directory.expanduser().resolve()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{directory} exists and is not empty; choose another directory")
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    partial.chmod(0o755)  # mkdtemp makes it accessible to the user only
    try:
        yield partial
        if directory.exists():
            directory.rmdir()
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_companions(directory: Path, raw: Mapping[str, Any], source: Path | None) -> None:
    """Write all but the weights: `raw` as config.json, and the source's tokenizer, template and generation settings."""
    for file in () if source is None else sorted(source.iterdir()):
        if file.is_file() and file.suffix in (".json", ".jinja", ".model") and file.name not in ("config.json", INDEX):
            shutil.copyfile(file, directory / file.name)
    (directory / "config.json").write_text(json.dumps(dict(raw), indent=2) + "\n", encoding="utf-8")


def _write_weights(model: "DiffusionGemma", directory: Path, source: Path | None, shard_bytes: int) -> None:
    from safetensors.torch import save_file

    text = _text_tensors(model)
    sizes = {name: tensor.nbytes for name, tensor in text.items()}
    for name, shape in vision_tensors(model.config).items():
        sizes[name] = math.prod(shape) * model.dtype.itemsize
    shards = _shards(sizes, shard_bytes)
    for file_name, shard in zip(shard_names(len(shards)), shards, strict=True):
        tensors = {name: text[name].detach().cpu().contiguous() for name in shard if name in text}
        tensors |= _vision_tensors(model, [name for name in shard if name not in text], source)
        save_file(tensors, directory / file_name, metadata={"format": "pt"})
    write_index(directory, shards, sum(sizes.values()))


def _text_tensors(model: "DiffusionGemma") -> dict[str, "Tensor"]:
    """Return the model's tensors by their names in a file."""
    from gesso.checkpoint.quantize.formats import stored_name
    from gesso.checkpoint.quantize.packed import Packed

    tensors: dict[str, Tensor] = {checkpoint_name(name): parameter for name, parameter in model.named_parameters()}
    for name, module in model.named_modules():
        if isinstance(module, Packed):
            tensors |= {stored_name(checkpoint_name(name), key): tensor for key, tensor in module.tensors.items()}
    return tensors


def shard_names(count: int) -> list[str]:
    if count == 1:
        return [SINGLE]
    return [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]


def write_index(directory: Path, shards: Sequence[Sequence[str]], total_size: int) -> None:
    """Write the index that names the file of each tensor. A single file needs none."""
    if len(shards) == 1:
        return
    files = zip(shard_names(len(shards)), shards, strict=True)
    weight_map = {name: file_name for file_name, shard in files for name in shard}
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _vision_tensors(model: "DiffusionGemma", names: list[str], source: Path | None) -> dict[str, "Tensor"]:
    """Return the vision tensors of `source`, and zeros for those that it lacks."""
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
