"""Merge an adapter into a checkpoint on disk: `gesso merge BASE ADAPTER OUT`.

One tensor is read at a time, changed in place, and written when a shard is full. So the model is never in memory: the
peak is the adapter's file, a shard (1 GB), and the tensor that is read. At the 26B shape the largest tensor has 1.5 GB.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from gesso.adapters.attach import StoredAdapter, fold
from gesso.adapters.files import read
from gesso.adapters.sites import adaptable_weights
from gesso.checkpoint import write
from gesso.checkpoint.card import MERGE, RECIPE, Merge
from gesso.checkpoint.find import find, find_directory, hub_base
from gesso.checkpoint.parameters import checkpoint_name, empty_model
from gesso.checkpoint.quantize.convert import SHARD_BYTES, stored_tensors
from gesso.checkpoint.safetensors import weight_files
from gesso.checkpoint.source import CheckpointSource, open_source
from gesso.errors import InputError


@dataclass(frozen=True, kw_only=True)
class MergeReport:
    base: str
    adapter: str
    directory: str
    rank: int
    alpha: float
    targets: tuple[str, ...]
    merged: int  # tensors that changed
    bytes: int  # of the weight files


def merge_files(base: str | Path, adapter: str | Path, target: Path, *, shard_bytes: int = SHARD_BYTES) -> MergeReport:
    """Write a checkpoint with the adapter added to its weights, in the dtype of the base."""
    source = open_source(find(base))
    directory = find_directory(adapter)
    if source.config.quantization is not None:
        raise InputError(
            f"cannot merge into {source.path}, which is quantized to {source.config.quantization}: rounding would "
            "remove most of the adapter. Merge it into the checkpoint that was quantized, then quantize the result "
            "(gesso quantize), or load it with this adapter unmerged"
        )
    source.check()
    stored = read(adaptable_weights(empty_model(source.config)), directory)
    if not stored.is_tied:
        raise InputError(
            f"cannot merge {directory}: it changes the shared weights of encoder and decoder differently, and there is "
            "one weight for both. Use it unmerged, or train one with gesso, which changes both alike"
        )
    changed: set[str] = set()
    settings = stored.settings
    origin = Merge(
        base=hub_base(base), adapter=hub_base(adapter), rank=settings.rank, alpha=settings.alpha,
        targets=settings.targets,
    )  # fmt: skip
    with write.whole(target) as partial:
        write.write_companions(partial, source.config.raw, source.directory)
        write.write_shards(_merged(source, stored, changed), partial, shard_bytes)
        (partial / MERGE).write_text(json.dumps(asdict(origin), indent=2) + "\n", encoding="utf-8")
        if (directory / RECIPE).is_file():
            shutil.copyfile(directory / RECIPE, partial / RECIPE)
    return MergeReport(
        base=str(base), adapter=str(adapter), directory=str(target), rank=settings.rank, alpha=settings.alpha,
        targets=settings.targets, merged=len(changed),
        bytes=sum(file.stat().st_size for file in weight_files(target.expanduser())),
    )  # fmt: skip


def _merged(source: CheckpointSource, adapter: StoredAdapter, changed: set[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors to write, and add the names of those that the adapter changes to `changed`."""
    pairs = {checkpoint_name(path): pair for path, pair in adapter.factors.items()}
    scale = adapter.settings.alpha / adapter.settings.rank
    with torch.no_grad():
        for name, tensor in stored_tensors(source, "merging"):
            if name in pairs:
                fold(tensor, *pairs[name], scale)
                changed.add(name)
            yield name, tensor
