"""Checkpoints of a run, to resume from: weights, optimizer state, average and step, written atomically."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from gesso.errors import CheckpointError, GessoError
from gesso.files import discard, full_disk, read_json, replacing_directory

Tensors = dict[str, Tensor]
Optimizers = Sequence[torch.optim.Optimizer]


def latest(out: Path) -> Path | None:
    """Return the newest checkpoint. It is complete: a checkpoint gets its name after all of it is written."""
    return max(out.glob("step-" + "[0-9]" * 8), default=None)


def trainable(model: nn.Module) -> Tensors:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def save(
    out: Path, step: int, parameters: Tensors, optimizers: Optimizers, average: Tensors,
    note: Mapping[str, Any], *, write: bool, keep: int,
) -> None:  # fmt: skip
    """Gather the shards, in every process, and write them in the process with `write`."""
    moments = {}
    for name, parameter in parameters.items():
        for key, value in _owner(optimizers, parameter).state[parameter].items():
            if key != "step":  # equals the step of the run
                moments[f"{name}:{key}"] = gathered(value)
    groups = {
        "weights": {name: gathered(tensor) for name, tensor in parameters.items()},
        "optimizer": moments,
        "average": {name: gathered(tensor) for name, tensor in average.items()},
    }
    if not write:
        return
    with replacing_directory(out / f"step-{step:08}") as partial:
        for name, tensors in groups.items():
            save_file(tensors, partial / f"{name}.safetensors")
        (partial / "state.json").write_text(json.dumps({"step": step, **note}, indent=1), encoding="utf-8")
    for old in sorted(out.glob("step-" + "[0-9]" * 8))[:-keep]:
        discard(old)


@contextmanager
def explained(out: Path) -> Iterator[None]:
    """Raise a GessoError that names the newest checkpoint if the disk is full in this block."""
    try:
        yield
    except Exception as error:
        reason = full_disk(error)
        if reason is None:
            raise
        newest = latest(out)
        if newest is None:
            resume = "no step is saved yet: the same command starts again"
        else:
            step = int(newest.name.removeprefix("step-"))
            resume = f"the last good step is {step}, in {newest}: the same command continues"
        raise GessoError(f"the run in {out} cannot be written: {reason}. Free some space; {resume}") from error


def read_note(directory: Path) -> dict[str, Any]:
    """Return the `note` of a checkpoint, with its step."""
    return read_json(directory / "state.json")


def load(directory: Path, step: int, parameters: Tensors, optimizers: Optimizers, average: Tensors) -> None:
    """Restore a checkpoint in place."""
    weights, moments, averages = (
        load_file(directory / f"{name}.safetensors") for name in ("weights", "optimizer", "average")
    )
    if set(weights) != set(parameters) or set(averages) != set(average):
        raise CheckpointError(f"the weights in {directory} are not those of this recipe; choose another run.out")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(like(weights[name], parameter))
            optimizer = _owner(optimizers, parameter)
            stored = {key.rpartition(":")[2]: key for key in moments if key.rpartition(":")[0] == name}
            state = {key: like(moments[path], parameter) for key, path in stored.items()}
            if isinstance(optimizer, torch.optim.AdamW):
                where = parameter.device if optimizer.param_groups[0]["fused"] else "cpu"
                state["step"] = torch.tensor(float(step), device=where)
            optimizer.state[parameter] = state
        for name, tensor in average.items():
            tensor.copy_(like(averages[name], tensor))


def _owner(optimizers: Optimizers, parameter: Tensor) -> torch.optim.Optimizer:
    return next(o for o in optimizers for group in o.param_groups if any(p is parameter for p in group["params"]))


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gathered(tensor: Tensor) -> Tensor:
    """Return the whole tensor on the CPU."""
    return full(tensor).detach().cpu().contiguous()


def like(tensor: Tensor, example: Tensor) -> Tensor:
    """Return the tensor with device, dtype and sharding of `example`."""
    tensor = tensor.to(device=example.device, dtype=example.dtype)
    if isinstance(example, DTensor):
        return distribute_tensor(tensor, example.device_mesh, example.placements)
    return tensor
