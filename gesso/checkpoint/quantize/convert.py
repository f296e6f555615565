"""Convert a checkpoint to a quantized one: `gesso quantize SRC DST --to FORMAT`.

One tensor is read at a time, and a shard is written when it is full. At the 26B shape the largest tensors are 1.5 GB
and a shard is 1 GB, so a few GB of memory are enough.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from gesso.checkpoint import transfer, write
from gesso.checkpoint.find import find
from gesso.checkpoint.huggingface import in_full
from gesso.checkpoint.parameters import is_vision, parameters
from gesso.checkpoint.quantize.formats import check_known, format_of, is_table, stored_name
from gesso.checkpoint.quantize.matrices import ROWS
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.safetensors import weight_files
from gesso.checkpoint.source import CheckpointSource, open_source
from gesso.errors import InputError
from gesso.model.config import Config
from gesso.printable import printable

SHARD_BYTES = 10**9


@dataclass(frozen=True, kw_only=True)
class ConversionReport:
    format: str
    source: str
    directory: str
    source_bytes: int  # of the weight files
    bytes: int
    errors: dict[str, float]  # by tensor: |w - packed w| / |w|, root mean squares


def quantize(source: str | Path, target: Path, to: str, *, shard_bytes: int = SHARD_BYTES) -> ConversionReport:
    check_known(to)
    opened = open_unquantized(source)
    directory, config = opened.directory, opened.config
    _check_sizes(to, config)
    errors: dict[str, float] = {}
    with write.whole(target) as partial:
        write.write_companions(partial, config.quantized(to).raw, directory)
        write.write_shards(_packed(opened, to, errors), partial, shard_bytes)
    return ConversionReport(
        format=to,
        source=str(directory),
        directory=str(target),
        source_bytes=_weight_bytes(directory),
        bytes=_weight_bytes(target.expanduser()),
        errors=errors,
    )


def open_unquantized(name: str | Path) -> CheckpointSource:
    """Open a checkpoint that is to be quantized."""
    source = open_source(find(name))
    if source.config.quantization is not None:
        raise InputError(
            f"{source.path} is already quantized to {source.config.quantization}; give the checkpoint it was "
            "quantized from"
        )
    source.check()
    return source


def stored_tensors(source: CheckpointSource, label: str) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor in the files of a checkpoint, also those of the vision tower."""
    stored, _ = source.headers
    recipes = ((name, in_full(part)) for name, part in stored.items())
    for name, _, (tensor,) in transfer.fetched(recipes, torch.device("cpu"), label):
        yield name, tensor


def _check_sizes(to: str, config: Config) -> None:
    """Reject matrices that cannot be cut into blocks, before anything is written."""
    for name, shape in parameters(config).items():
        if format := format_of(name, shape, to):
            format.stored(name, shape)


def _packed(source: CheckpointSource, to: str, errors: dict[str, float]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors to write with their names, and add the error of each matrix to `errors`."""
    for name, tensor in stored_tensors(source, f"quantizing to {to}"):
        format = None if is_vision(name) else format_of(name, tensor.shape, to)
        if format is None:
            yield name, tensor
            continue
        packed = format.quantize(name, tensor)
        errors[name] = relative_error(tensor, packed)
        yield from ((stored_name(name, key), part) for key, part in packed.tensors.items())


def relative_error(weight: Tensor, packed: Packed) -> float:
    """Return the root mean square of the error over that of the weight; 0 if the weight is all zeros.

    Experts, or blocks of rows, are compared one by one to save memory.
    """
    stack = weight.ndim == 3
    exacts, rounds = (weight, packed.unbind()) if stack else (weight.split(ROWS), packed.split(ROWS))
    error = total = 0.0
    for exact, rounded in zip(exacts, rounds, strict=True):
        exact = exact.float()
        error += (rounded.dense(exact.dtype) - exact).square().sum().item()
        total += exact.square().sum().item()
    return math.sqrt(error / total) if total else 0.0


def _weight_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in weight_files(directory))


# --- rendering ------------------------------------------------------------------------------------------------------

_COLUMNS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "experts.gate_up_proj", "experts.down_proj"),
)
_HEADS = ("q", "k", "v", "o", "gate", "up", "down", "e.gate_up", "e.down")


def render(report: ConversionReport, console: Console) -> None:
    console.print(
        Text(f"Relative error of each matrix in {report.format}, percent of its root mean square (e.: experts)")
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("", *_HEADS):
        table.add_column(head, justify="right" if head else "left")
    rows: dict[str, dict[str, float]] = {}
    for name, error in report.errors.items():
        if not is_table(name):
            row, column = _place(name)
            rows.setdefault(row, {})[column] = error
    for row, errors in sorted(rows.items(), key=lambda item: _row_order(item[0])):
        table.add_row(row, *(f"{100 * errors[c]:.2f}" if c in errors else "" for c in _COLUMNS))
    console.print(table)
    for name in filter(is_table, report.errors):
        console.print(Text(f"{name.removesuffix('.weight').removeprefix('model.')}  {100 * report.errors[name]:.2f}"))
    unit, name = (1e9, "GB") if report.source_bytes >= 1e9 else (1e6, "MB")
    sizes = f"{report.bytes / unit:,.2f} {name}, from {report.source_bytes / unit:,.2f} {name}"
    console.print(Text(printable(f"{report.directory}: {sizes}"), overflow="fold"))


def _place(name: str) -> tuple[str, str]:
    """Return row and column of a tensor in the table."""
    stem = name.removesuffix(".weight")
    if match := re.search(r"^model\.(decoder|encoder)\..*?layers\.(\d+)\.(.*)$", stem):
        stack = "layer" if match[1] == "decoder" else "encoder layer"
        return f"{stack} {match[2]}", match[3]
    return "conditioning", f"mlp.{stem.rpartition('.')[2]}"


def _row_order(row: str) -> tuple[str, int]:
    label, _, number = row.rpartition(" ")
    return label, int(number) if number.isdigit() else 0
