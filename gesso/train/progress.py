"""The progress of a run on stderr: one line that is redrawn on a terminal, or plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gesso.printable import printable
from gesso.train.held_out import KEY, Sample

INTERVAL = 10.0  # seconds between plain lines; steps with a held-out loss and the last step always get one
SHOWN = 200  # characters of a prompt, its end, and of an answer, its beginning


class Progress:
    """Shows the metrics of each step. With `visible` false, nothing is shown."""

    def __init__(self, steps: int, device: torch.device, visible: bool = True) -> None:
        self.steps, self.device, self.visible = steps, device, visible
        terminal = sys.stderr.isatty()
        self.console = Console(stderr=True, force_terminal=terminal, soft_wrap=not terminal, highlight=False)
        # Without a thread: it is redrawn at each step.
        self.live = Live(console=self.console, auto_refresh=False) if visible and terminal else None
        self.started, self.first, self.printed = time.monotonic(), 0, -INTERVAL
        self.held_out: float | None = None

    def __enter__(self) -> Self:
        if self.live:
            self.live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.__exit__(kind, error, trace)

    def step(self, metrics: Mapping[str, float]) -> None:
        step, now = int(metrics["step"]), time.monotonic()
        if not self.first:  # a resumed run does not begin at step 1; the first step takes longer than the others
            self.first, self.started = step, now
        self.held_out = metrics.get(KEY, self.held_out)
        line = self.line(metrics, now)
        if self.live:
            self.live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif self.visible and (now - self.printed >= INTERVAL or KEY in metrics or step == self.steps):
            self.printed = now
            print(line, file=sys.stderr, flush=True)

    def line(self, metrics: Mapping[str, float], now: float) -> str:
        step = int(metrics["step"])
        parts = [f"step {step}/{self.steps}", f"loss {metrics['loss']:.4f}"]
        if self.held_out is not None:
            parts.append(f"held out {self.held_out:.4f}")
        parts.append(f"{metrics['tokens_per_second']:,.0f} tokens/s")
        if memory := memory_used(self.device):
            parts.append(f"{memory / 1e9:.1f} GB")
        if step > self.first:
            parts.append(f"{duration((now - self.started) / (step - self.first) * (self.steps - step))} left")
        return " · ".join(parts)

    def samples(self, samples: Sequence[Sample]) -> None:
        if not self.visible:
            return
        for sample in samples:
            prompt, answer = (" ".join(printable(text).split()) for text in (sample.prompt, sample.answer))
            prompt = prompt if len(prompt) <= SHOWN else "…" + prompt[-SHOWN:]
            answer = answer if len(answer) <= SHOWN else answer[:SHOWN] + "…"
            self.console.print(Text(f"  {prompt}", style="dim"), Text(f"  → {answer}"), sep="\n")


def memory_used(device: torch.device) -> int:
    """Return the bytes of GPU memory that torch holds, or on a CPU the resident memory of this process."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    with suppress(OSError):  # Linux only
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with suppress(ImportError):  # not on Windows
        from resource import RUSAGE_SELF, getrusage

        return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 0


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
