"""The progress of a training run on stderr: the metrics of a step, and samples."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import torch
from rich.console import Console
from rich.text import Text

from gesso.memory.device import used_bytes
from gesso.printable import printable
from gesso.progress import Progress
from gesso.train.held_out import KEY, HeldOutSample

SHOWN = 200  # characters of a prompt, its end, and of an answer, its beginning


class TrainingProgress:
    """Shows the metrics of each step. With `visible` false, nothing is shown."""

    def __init__(
        self,
        steps: int,
        device: torch.device,
        visible: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps, self.device = steps, device
        self.progress = Progress(keep=True, visible=visible, clock=clock)
        self.held_out: float | None = None

    def __enter__(self) -> Self:
        self.progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.__exit__(kind, error, trace)

    def step(self, metrics: Mapping[str, float]) -> None:
        step = int(metrics["step"])
        self.held_out = metrics.get(KEY, self.held_out)
        is_first = not self.progress.stages
        now = is_first or KEY in metrics or step == self.steps
        self.progress.show("step", step, self.steps, self._note(metrics), now=now)

    def _note(self, metrics: Mapping[str, float]) -> str:
        parts = [f"loss {metrics['loss']:.4f}"]
        if self.held_out is not None:
            parts.append(f"held out {self.held_out:.4f}")
        parts.append(f"{metrics['tokens_per_second']:,.0f} tokens/s")
        if memory := used_bytes(self.device):
            parts.append(f"{memory / 1e9:.1f} GB")
        return " · ".join(parts)

    def samples(self, samples: Sequence[HeldOutSample]) -> None:
        if not self.progress.visible:
            return
        console = self.progress.live.console if self.progress.live else _plain()
        for sample in samples:
            prompt, answer = (" ".join(printable(text).split()) for text in (sample.prompt, sample.answer))
            prompt = prompt if len(prompt) <= SHOWN else "…" + prompt[-SHOWN:]
            answer = answer if len(answer) <= SHOWN else answer[:SHOWN] + "…"
            console.print(Text(f"  {prompt}", style="dim"), Text(f"  → {answer}"), sep="\n")


def _plain() -> Console:
    return Console(file=sys.stderr, force_terminal=False, soft_wrap=True, highlight=False)
