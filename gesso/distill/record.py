"""Record runs of a model: the canvas before every step, the final text, and whether a verifier accepts it.

Runs are batched by the engine. They are written in shards by their number, so an interrupted recording continues after
the last complete shard, with the same canvases: the seed of a run depends on its number only.

N steps of a canvas, C canvas.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gesso.api import Gesso
from gesso.diffusion.canvas import Canvas, Process
from gesso.diffusion.schedule import temperature
from gesso.distill.prompts import Prompts, VerifiedRequest
from gesso.engine.driver import PlanRun
from gesso.engine.events import Commit, Draft, Event, Result
from gesso.engine.plan import generate
from gesso.engine.request import Request
from gesso.errors import GessoError, InputError
from gesso.files import full_disk, locked, read_json, remove_all_abandoned, replacing
from gesso.train.trajectories import (
    Ints,
    RecordedCanvas,
    Trajectory,
    read_index,
    read_shard,
    shard_path,
    write_index,
    write_shard,
)

NOTE = "record.json"
ROWS = "rows.jsonl"
LOCK = ".lock"  # in the directory of a recording, while it is written
SHARD = 256  # runs

Show = Callable[[int, int], None]  # runs done, of how many


@dataclass(frozen=True)
class WatchedCanvas:
    """A committed canvas: the tokens before it, its text, and the canvases of its steps."""

    before: Ints
    text: Ints
    trajectory: Trajectory


@dataclass
class Watch:
    """Collects the canvases of one run from its events."""

    g: Gesso
    request: Request
    before: list[int]  # text before the current canvas
    drafts: list[Tensor] = field(default_factory=list)
    canvas: Canvas | None = None  # after the last step
    committed: list[WatchedCanvas] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Draft):
            if event.canvas.step == 1:  # a new canvas, or one that is drawn again because the text would be empty
                self.drafts = []
            self.canvas = event.canvas
            self.drafts.append(event.canvas.tokens_C)
        elif isinstance(event, Commit):
            self._finish(list(event.tokens))

    def _finish(self, text: list[int]) -> None:
        canvas = self.canvas
        settings = self.request.diffusion
        assert canvas is not None
        result = canvas.result_C.tolist()
        # The first step reads noise. No step reads the canvas after the last one.
        noisy = [_blank(self.g, self.request, canvas), *torch.stack(self.drafts).cpu()[:-1]]
        temperatures = [temperature(settings, settings.steps - step) for step in range(len(noisy))]
        trajectory = Trajectory(
            canvas_NC=torch.stack(noisy).numpy().astype(np.int32),
            temperature_N=np.array(temperatures, dtype=np.float32),
        )
        if len(text) < len(result):  # a stop string leaves no end token
            following = result[len(text)]
            text = [*text, following if following in self.request.eos else self.g.eos_token_id]
        before = np.array(self.before, dtype=np.int32)
        self.committed.append(WatchedCanvas(before=before, text=np.array(text, dtype=np.int32), trajectory=trajectory))
        self.before += result


class Shards:
    """The shards of a recording that are not complete. Each is written when the last of its runs has ended."""

    def __init__(self, directory: Path, runs: int, canvas_length: int) -> None:
        self.directory = directory
        self.canvas_length = canvas_length
        numbers = (n for n in range(-(-runs // SHARD)) if not shard_path(directory, n).exists())
        self.left = {n: set(range(n * SHARD, min((n + 1) * SHARD, runs))) for n in numbers}  # runs that have not ended
        self.entries: dict[int, list[RecordedCanvas]] = {n: [] for n in self.left}

    @property
    def missing(self) -> list[int]:
        return sorted(run for runs in self.left.values() for run in runs)

    def add(self, run: int, entries: Sequence[RecordedCanvas]) -> None:
        number = run // SHARD
        self.entries[number] += entries
        self.left[number].remove(run)
        if not self.left[number]:
            ordered = sorted(self.entries.pop(number), key=lambda entry: entry.run)
            write_shard(shard_path(self.directory, number), ordered, self.canvas_length)


def _blank(g: Gesso, request: Request, canvas: Canvas) -> Tensor:
    """Return the noise that a canvas began with."""
    process = Process(
        settings=request.diffusion,
        source=g.engine.source,
        seed=request.seed,
        vocab_size=g.config.vocab_size,
        eos=request.eos,
        device=torch.device("cpu"),
    )
    return process.blank(canvas.index, len(canvas.tokens_C), {}, canvas.attempt).tokens_C


def record(
    g: Gesso,
    prompts: Prompts,
    directory: Path,
    note: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    batch: int,
    show: Show = lambda done, total: None,
    minutes: float | None = None,
) -> bool:
    """Record a run for every prompt, and return whether all are there. A later call continues.

    `options` are those of `Gesso.generate`. `note` names the model; a directory with runs of another model, of other
    prompts or with other settings is rejected.
    """
    first = prompts.ask(g, 0, options).request
    if first.diffusion.by_token or first.diffusion.steps < 2:
        raise InputError("there are no canvases of several steps to record; use write=canvas, or more steps")
    length = first.length_after(0, g.config)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    whole_note = note_of(prompts, note, options)
    if is_complete(directory, whole_note):
        return True
    with _alone(directory):
        _begin(directory, whole_note, prompts)
        shards = Shards(directory, len(prompts), length)
        if not _record_missing(g, prompts, shards, options, batch=batch, show=show, deadline=deadline):
            return False
        settings = first.diffusion
        plain = {name: value if _is_plain(value) else repr(value) for name, value in asdict(settings).items()}
        summary = _summary(directory, len(prompts))
        write_index(directory, {**summary, "canvas_length": length, "settings": plain})
    return True


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep other processes from recording into a directory, and remove what a killed one has left in it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory / LOCK) as is_locked:
            if is_locked:
                remove_all_abandoned(directory)
            yield
    except Exception as error:
        reason = full_disk(error)
        if reason is None:
            raise
        raise GessoError(
            f"the recording in {directory} cannot be written: {reason}. Free some space; the same command continues"
        ) from error


def _record_missing(
    g: Gesso,
    prompts: Prompts,
    shards: Shards,
    options: Mapping[str, Any],
    *,
    batch: int,
    show: Show,
    deadline: float | None,
) -> bool:
    """Record the runs of the shards that are not complete, and return whether there was time for all."""
    waiting = iter(shards.missing)
    running: dict[int, PlanRun[list[Result]]] = {}
    failed: list[Exception] = []

    def end(index: int, prompt: VerifiedRequest, watch: Watch, run: PlanRun[list[Result]]) -> None:
        running.pop(index, None)
        if isinstance(run.error, InputError):  # such as a prompt that is too long
            failed.append(run.error)
            shards.add(index, [])
        else:
            accepted = prompt.accepts(run.outcome()[0])  # raises any other error
            # Training needs canvases of one length. The last canvas of a text may be shorter, and is left out.
            entries = [
                RecordedCanvas(
                    before=canvas.before,
                    text=canvas.text,
                    trajectory=canvas.trajectory,
                    run=index,
                    accepted=accepted,
                )
                for canvas in watch.committed
                if canvas.trajectory.canvas_NC.shape[1] == shards.canvas_length
            ]
            shards.add(index, entries)
        show(len(prompts) - sum(map(len, shards.left.values())), len(prompts))

    try:
        while True:
            while len(running) < batch and (index := next(waiting, None)) is not None:
                prompt = prompts.ask(g, index, options)
                watch = Watch(g=g, request=prompt.request, before=list(prompt.request.prompt))
                run = g.driver.submit(
                    generate([prompt.request]), on_event=watch, on_end=partial(end, index, prompt, watch)
                )
                if not run.ended:
                    running[index] = run
            if not running:
                break
            g.driver.step()
            if deadline is not None and time.monotonic() > deadline:
                return False
    finally:
        for run in list(running.values()):
            g.driver.cancel(run)
    if failed and len(failed) == len(prompts):
        raise failed[0]
    return True


def note_of(prompts: Prompts, note: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that determines the runs, as JSON stores it."""
    plain = {name: value if _is_plain(value) else repr(value) for name, value in options.items()}
    stored: dict[str, Any] = json.loads(json.dumps({**note, **prompts.note, "options": plain}))
    return stored


def is_complete(directory: Path, note: Mapping[str, Any]) -> bool:
    """Return whether these runs are recorded. Reject a directory with other runs."""
    if not (directory / NOTE).is_file():
        return False
    before = read_json(directory / NOTE)
    if changed := [name for name in sorted(before.keys() | note) if before.get(name) != note.get(name)]:
        raise InputError(
            f"{directory} has runs that were recorded with different settings ({', '.join(changed)}); choose another "
            "directory, or delete this one to record again"
        )
    return read_index(directory) is not None


def _begin(directory: Path, note: Mapping[str, Any], prompts: Prompts) -> None:
    """Write the note and the reference rows, unless a recording with this note is to be continued."""
    if is_complete(directory, note) or (directory / NOTE).is_file():
        return
    with replacing(directory / ROWS) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in prompts.rows())
    with replacing(directory / NOTE) as file:
        file.write(json.dumps(note, indent=1).encode())


def _summary(directory: Path, runs: int) -> dict[str, Any]:
    """Return the figures of a recording, from its shards."""
    entries = [entry for shard in range(-(-runs // SHARD)) for entry in read_shard(shard_path(directory, shard))]
    steps: Sequence[int] = [len(entry.trajectory.canvas_NC) for entry in entries] or [0]
    return {
        "runs": runs,
        "accepted": len({entry.run for entry in entries if entry.accepted}),
        "canvases": len(entries),
        "steps": fmean(steps),
    }


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool, type(None)))
