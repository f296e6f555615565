"""Recorded runs of a model: the canvases of each step, and the text that the run ended with, on disk.

A directory has shards of safetensors (`00000.safetensors`, …) and, once it is complete, `index.json`. A shard holds
one entry per canvas of a run, with these tensors; `x_end` has the end of each entry's part of `x`:

    before, before_end            text before the canvas: the prompt, and the earlier canvases
    text, text_end                the canvas' part of the final text, with its end token
    canvas, canvas_end            [steps, C]: the noisy canvas that each step read
    temperature                   [steps]: of each step's prediction
    run, accepted                 number of the run, and whether the verifier accepted its text

Self-conditioning is not recorded: at the 26B shape, the soft embedding of one step takes 1.4 MB, a canvas 1 KB.
Training computes it again with the current weights, from the first canvas of the run on, so it shows the first few
steps only. Beginning later is no substitute: a position that was not accepted is noise again, so most of what a run
has found out is in the self-conditioning. With gesso-mini and at most 12 runs, the cross-entropy of the fifth canvas to
the final text is 0.002 after the whole run, and 0.02 to 0.08 after one to three steps of it.

N steps of a run, C canvas.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save

from gesso.errors import InputError
from gesso.files import read_json, replacing

INDEX, SUFFIX = "index.json", ".safetensors"
RAGGED = ("before", "text", "canvas")

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Trajectory:
    """The canvases that the steps of a run read, and the temperature of each step's prediction."""

    canvas_NC: Ints
    temperature_N: npt.NDArray[np.float32]

    def begin(self, steps: int) -> "Trajectory":
        """Return the first steps of the run."""
        return Trajectory(self.canvas_NC[:steps], self.temperature_N[:steps])

    def pick(self, later: bool, level: float) -> tuple[Ints, "Trajectory"]:
        """Return a canvas, and the steps before it, whose predictions condition it.

        The canvas is that of the first step, which has no self-conditioning, or of a `later` one: at `level`, between 0
        and 1, of their range. A run of one step has no later one; its first canvas then conditions itself, as in
        ordinary training.
        """
        steps = len(self.canvas_NC)
        at = min(1 + int(level * (steps - 1)), steps - 1) if later else 0
        return self.canvas_NC[at], self.begin(max(at, 1) if later else 0)


@dataclass(frozen=True)
class RecordedCanvas:
    """One canvas of a recorded run."""

    before: Ints
    text: Ints
    trajectory: Trajectory
    run: int
    accepted: bool


def shard_path(directory: Path, number: int) -> Path:
    return directory / f"{number:05}{SUFFIX}"


def write_shard(path: Path, entries: Sequence[RecordedCanvas], canvas_length: int) -> None:
    """Write a shard, which gets its name when it is complete."""
    parts: dict[str, list[Ints]] = {
        "before": [entry.before for entry in entries],
        "text": [entry.text for entry in entries],
        "canvas": [entry.trajectory.canvas_NC for entry in entries],
    }
    empty = {"before": (0,), "text": (0,), "canvas": (0, canvas_length)}
    tensors: dict[str, npt.NDArray[Any]] = {}
    for name, part in parts.items():
        tensors[name] = np.concatenate([np.zeros(empty[name], dtype=np.int32), *part])
        tensors[f"{name}_end"] = np.cumsum([len(values) for values in part], dtype=np.int64)
    temperatures = [entry.trajectory.temperature_N for entry in entries]
    tensors["temperature"] = np.concatenate([np.zeros(0, dtype=np.float32), *temperatures]).astype(np.float32)
    tensors["run"] = np.array([entry.run for entry in entries], dtype=np.int64)
    tensors["accepted"] = np.array([entry.accepted for entry in entries], dtype=np.uint8)
    with replacing(path) as file:
        file.write(save(tensors))


def write_index(directory: Path, index: Mapping[str, Any]) -> None:
    """Write the index, which marks the recording as complete."""
    with replacing(directory / INDEX) as file:
        file.write(json.dumps(index, indent=1).encode())


def read_index(directory: Path) -> dict[str, Any] | None:
    """Return the index, or None if the recording is not complete."""
    return read_json(directory / INDEX) if (directory / INDEX).is_file() else None


def recorded_files(directory: Path) -> list[Path]:
    """Return the index and the shards."""
    return [directory / INDEX, *sorted(directory.glob("[0-9]" * 5 + SUFFIX))]


class Trajectories:
    """The accepted entries of complete recordings, in memory. Rejected ones are not kept: they are never trained on."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self.entries: list[RecordedCanvas] = []
        lengths = {}
        for directory in directories:
            if (index := read_index(directory)) is None:
                raise InputError(
                    f"{directory} has no complete recording of runs; record them with gesso distill, or let the same "
                    "command finish"
                )
            lengths[str(directory)] = int(index["canvas_length"])
            for path in recorded_files(directory)[1:]:
                self.entries += [entry for entry in read_shard(path) if entry.accepted]
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise InputError(f"recordings for one run must have canvases of one length; these have: {shown}")
        if not self.entries:
            raise InputError(
                f"the verifier accepted no run in {', '.join(lengths)}: there is nothing to train on; record with "
                "better settings, or accept more (--accept)"
            )
        (self.canvas_length,) = set(lengths.values())

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The lengths of the entries in tokens, without the fill of the canvas."""
        return np.array([len(entry.before) + len(entry.text) for entry in self.entries], dtype=np.int64)


def read_shard(path: Path) -> list[RecordedCanvas]:
    """Return the entries of a shard, rejected ones too."""
    tensors = load_file(path)
    starts = {name: np.concatenate([[0], tensors[f"{name}_end"]]) for name in RAGGED}

    def part(name: str, i: int) -> Ints:
        values: Ints = tensors[name][starts[name][i] : starts[name][i + 1]]
        return values

    entries = []
    numbers = zip(tensors["run"].tolist(), tensors["accepted"].tolist(), strict=True)
    for i, (run, accepted) in enumerate(numbers):
        steps = slice(starts["canvas"][i], starts["canvas"][i + 1])
        trajectory = Trajectory(canvas_NC=part("canvas", i), temperature_N=tensors["temperature"][steps])
        entries.append(
            RecordedCanvas(
                before=part("before", i),
                text=part("text", i),
                trajectory=trajectory,
                run=run,
                accepted=bool(accepted),
            )
        )
    return entries
