"""The metrics of a run: one JSON object per step in metrics.jsonl, and events for TensorBoard and Weights & Biases."""

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from gesso.errors import InputError
from gesso.files import replacing

ALWAYS_LOGGED = "held_out"  # a step with this metric is logged whatever `log_every` is: such steps are rare


class MetricsWriter(Protocol):
    """A service or format that receives the metrics in addition to metrics.jsonl."""

    def write(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class MetricsLog:
    """The log of a run that continues after `step`.

    Steps that an interrupted run logged after its last checkpoint are dropped, because they are run again.
    """

    def __init__(
        self, out: Path, writers: Sequence[str], log_every: int, settings: Mapping[str, Any], step: int
    ) -> None:
        self.path = out / "metrics.jsonl"
        self.log_every = log_every
        self.writers: list[MetricsWriter] = [WRITERS[name](out, settings, step) for name in writers]
        self._drop_after(step)

    def append(self, metrics: Mapping[str, float]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")
        step = int(metrics["step"])
        if step % self.log_every == 0 or ALWAYS_LOGGED in metrics:
            for writer in self.writers:
                writer.write(metrics, step)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    def _drop_after(self, step: int) -> None:
        if not self.path.exists():
            return
        lines = [json.dumps(line) + "\n" for line in read_metrics(self.path.parent) if line["step"] <= step]
        with replacing(self.path) as file:
            file.write("".join(lines).encode("utf-8"))


def read_metrics(out: Path) -> list[dict[str, float]]:
    """Return the metrics of every step so far; the last line may be incomplete."""
    lines = []
    path = out / "metrics.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


class TensorBoard:
    def __init__(self, out: Path, _: Mapping[str, Any], step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _missing("tensorboard", "pip install 'gesso-lm[train]'") from None
        self.writer = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run in the project `gesso`, or in the one of WANDB_PROJECT. A resumed run continues it."""

    def __init__(self, out: Path, settings: Mapping[str, Any], step: int) -> None:
        try:
            wandb = import_module("wandb")
        except ImportError:
            raise _missing("wandb", "pip install wandb") from None
        name = out.resolve().name
        # The id is kept in the directory, so that a second part of the run continues the first one.
        file = out / "wandb-id"
        if not file.exists():
            out.mkdir(parents=True, exist_ok=True)
            file.write_text(secrets.token_hex(6), encoding="utf-8")
        identity = file.read_text(encoding="utf-8")
        project = os.environ.get("WANDB_PROJECT", "gesso")
        self.run = wandb.init(
            project=project, name=name, id=identity, resume="allow", dir=str(out), config=dict(settings)
        )

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        self.run.log(dict(metrics), step=step)

    def close(self) -> None:
        self.run.finish()


WRITERS: Mapping[str, Callable[[Path, Mapping[str, Any], int], MetricsWriter]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


def _missing(package: str, command: str) -> InputError:
    return InputError(f"logging to {package} needs the package {package}: {command}")
