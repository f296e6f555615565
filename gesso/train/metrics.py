"""The metrics of a run: one JSON object per step in metrics.jsonl, and TensorBoard events."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gesso.errors import InputError
from gesso.files import replacing


class MetricsLog:
    """The log of a run that continues after `step`.

    The steps that an interrupted run logged after its last checkpoint are dropped: they are run again.
    """

    def __init__(self, out: Path, tensorboard: bool, log_every: int, step: int) -> None:
        self.path, self.log_every = out / "metrics.jsonl", log_every
        self.writer = _tensorboard(out, step) if tensorboard else None
        self._drop_after(step)

    def append(self, metrics: Mapping[str, float]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")
        step = int(metrics["step"])
        if self.writer is not None and step % self.log_every == 0:
            for name, value in metrics.items():
                self.writer.add_scalar(name, value, step)
            self.writer.flush()

    def _drop_after(self, step: int) -> None:
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except ValueError:  # the last line may be incomplete
                continue
        with replacing(self.path) as file:
            file.write("".join(kept).encode("utf-8"))


def _tensorboard(out: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("run.tensorboard needs the package tensorboard: pip install '.[train]' in the clone") from None
    return SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)
