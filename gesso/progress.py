"""The progress of long work on stderr: a line per stage that is redrawn on a terminal, plain lines elsewhere."""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gesso.printable import printable

if TYPE_CHECKING:
    from rich.text import Text

INTERVAL = 10.0  # seconds between plain lines
REDRAW = 0.1  # seconds between changes on a terminal
BAR = 20  # characters


@dataclass
class Stage:
    """One part of the work. The time left counts from its first report on: what came before took longer, or less."""

    name: str
    began: float
    first: int
    done: int
    total: int
    note: str = ""

    def seconds_left(self, now: float) -> float | None:
        """Return the expected time to the end; None before anything is done, and at the end."""
        if not self.first < self.done < self.total:
            return None
        return (now - self.began) / (self.done - self.first) * (self.total - self.done)

    def line(self, now: float, in_bytes: bool) -> str:
        amount = f"{self.done:,}/{self.total:,}"
        if in_bytes:
            amount = f"{self.done / 1e9:.2f}/{self.total / 1e9:.2f} GB"
        parts = [f"{printable(self.name)} {amount}"]
        if self.note:
            parts.append(printable(self.note))
        if in_bytes and self.done > self.first and now > self.began:
            parts.append(f"{(self.done - self.first) / (now - self.began) / 1e6:,.0f} MB/s")
        if (left := self.seconds_left(now)) is not None:
            parts.append(f"{duration(left)} left")
        return " · ".join(parts)

    def bar(self) -> str:
        filled = BAR * self.done // max(1, self.total)
        return "━" * filled + "─" * (BAR - filled)


class Progress:
    """Shows how much is done of each stage of some work. Work shorter than INTERVAL prints no plain line.

    `in_bytes`: amounts are bytes. `keep`: the last state stays on a terminal. With `visible` false, nothing is shown.
    `clock` returns seconds.
    """

    def __init__(
        self,
        *,
        in_bytes: bool = False,
        keep: bool = False,
        visible: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.in_bytes = in_bytes
        self.visible = visible
        self.keep = keep
        self.stages: dict[str, Stage] = {}
        self.printed = self.clock()
        self.drawn = -math.inf
        self.live = None
        if visible and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            # Without a thread: it is redrawn when something is done.
            self.live = Live(console=Console(stderr=True), auto_refresh=False, transient=not keep)

    def __enter__(self) -> Self:
        if self.live:
            self.live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            if self.keep and self.stages:
                self.live.update(self._drawing(self.clock()))
            self.live.__exit__(kind, error, trace)

    def show(self, name: str, done: int, total: int, note: str = "", *, now: bool = False) -> None:
        """Report that `done` of `total` are done in the stage of this name. With `now`, print a plain line at once."""
        if not self.visible:
            return
        clock = self.clock()
        stage = self.stages.setdefault(name, Stage(name=name, began=clock, first=done, done=done, total=total))
        stage.done = done
        stage.total = total
        stage.note = note
        if self.live:
            if clock - self.drawn >= REDRAW:
                self.drawn = clock
                self.live.update(self._drawing(clock), refresh=True)
        elif now or clock - self.printed >= INTERVAL:
            self.printed = clock
            print(stage.line(clock, self.in_bytes), file=sys.stderr, flush=True)

    def add(self, name: str, total: int, count: int) -> None:
        """Report that `count` more of `total` are done in the stage of this name."""
        before = self.stages[name].done if name in self.stages else 0
        self.show(name, before + count, total)

    def _drawing(self, clock: float) -> "Text":
        from rich.text import Text

        lines = (f"{stage.bar()} {stage.line(clock, self.in_bytes)}" for stage in self.stages.values())
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
