"""What a run needs to go on where it was: weights, optimizer, average, step. Written whole or not at all."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from gesso.errors import CheckpointError

Tensors = dict[str, Tensor]


def latest(out: Path) -> Path | None:
    """The newest complete checkpoint: one appears under its name only when all of it is written."""
    return max(out.glob("step-" + "[0-9]" * 8), default=None)


def trainable(model: nn.Module) -> Tensors:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def save(
    out: Path, step: int, parameters: Tensors, optimizer: torch.optim.Optimizer, average: Tensors,
    note: Mapping[str, Any], *, write: bool, keep: int,
) -> None:  # fmt: skip
    """Every process takes part, to put shards together; the one told to writes."""
    moments = {}
    for name, parameter in parameters.items():
        for key in ("exp_avg", "exp_avg_sq"):
            moments[f"{name}:{key}"] = whole(optimizer.state[parameter][key])
    groups = {
        "weights": {name: whole(tensor) for name, tensor in parameters.items()},
        "optimizer": moments,
        "average": {name: whole(tensor) for name, tensor in average.items()},
    }
    if not write:
        return
    partial = Path(tempfile.mkdtemp(prefix=".step-", dir=out))
    try:
        for name, tensors in groups.items():
            save_file(tensors, partial / f"{name}.safetensors")
        (partial / "state.json").write_text(json.dumps({"step": step, **note}, indent=1), encoding="utf-8")
        target = out / f"step-{step:08}"
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for old in sorted(out.glob("step-" + "[0-9]" * 8))[:-keep]:
        shutil.rmtree(old)


def load(directory: Path, parameters: Tensors, optimizer: torch.optim.Optimizer, average: Tensors) -> dict[str, Any]:
    """Put a checkpoint back in place; what `save` noted comes back."""
    note: dict[str, Any] = json.loads((directory / "state.json").read_text(encoding="utf-8"))
    weights, moments, averages = (
        load_file(directory / f"{name}.safetensors") for name in ("weights", "optimizer", "average")
    )
    if set(weights) != set(parameters) or set(averages) != set(average):
        raise CheckpointError(f"{directory} holds other weights than this recipe trains; choose another run.out")
    fused = bool(optimizer.param_groups[0]["fused"])
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(like(weights[name], parameter))
            optimizer.state[parameter] = {
                "step": torch.tensor(float(note["step"]), device=parameter.device if fused else "cpu"),
                **{key: like(moments[f"{name}:{key}"], parameter) for key in ("exp_avg", "exp_avg_sq")},
            }
        for name, tensor in average.items():
            tensor.copy_(like(averages[name], tensor))
    return note


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Put together, and on the CPU."""
    return full(tensor).detach().cpu().contiguous()


def like(full: Tensor, example: Tensor) -> Tensor:
    full = full.to(device=example.device, dtype=example.dtype)
    if isinstance(example, DTensor):
        return distribute_tensor(full, example.device_mesh, example.placements)
    return full
