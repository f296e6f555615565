"""Batches for distillation: recorded canvases of the model's own runs, mixed with ordinary rows."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.train.data import Dataset, Example
from gesso.train.image_rows import RowImageReader
from gesso.train.order import order
from gesso.train.recipe import DataSettings, DistillSettings
from gesso.train.trajectories import Trajectories


class Distilled:
    """A source of batches: of each, a fixed share are rows, and the others are canvases of accepted runs.

    With the ordinary objective, the same canvases come without their trajectories, so they get random noise.
    """

    def __init__(
        self,
        settings: DistillSettings,
        data: DataSettings,
        tokenizer: Tokenizer,
        eos: int,
        images: RowImageReader | None = None,
    ) -> None:
        self.settings, self.seed = settings, data.seed
        self.trajectories = Trajectories([Path(name).expanduser() for name in settings.trajectories])
        self.rows = Dataset(data, tokenizer, eos, images) if settings.rows else None

    def batches(
        self, batch_size: int, start: int, rank: int, world: int, *, stride: int, canvas_lengths: Sequence[int]
    ) -> Iterator[tuple[Example, ...]]:
        length = self.trajectories.canvas_length
        if set(canvas_lengths) != {length}:
            raise InputError(f"the recorded canvases have {length} tokens; set objective.canvas_lengths = [{length}]")
        rows = round(self.settings.rows * batch_size)
        if batch_size % world or rows >= batch_size:
            raise InputError(
                f"batch_size {batch_size} must be a multiple of the {world} processes, and leave room for a recorded "
                f"canvas beside {rows} rows; raise run.batch_size, or lower distill.rows"
            )
        own = order(self.trajectories.lengths, batch_size - rows, self.seed, start)
        recorded = (tuple(map(self._example, chosen.tolist())) for chosen in islice(own, 0, None, stride))
        share = slice(rank * batch_size // world, (rank + 1) * batch_size // world)
        if not rows or self.rows is None:
            return (examples[share] for examples in recorded)
        ordinary = self.rows.batches(rows, start, stride=stride, canvas_lengths=canvas_lengths)
        return ((*some, *others)[share] for some, others in zip(recorded, ordinary, strict=False))

    def _example(self, number: int) -> Example:
        entry = self.trajectories.entries[number]
        at, tokens = len(entry.before), (*entry.before.tolist(), *entry.text.tolist())
        is_shown = self.settings.objective == "trajectory"
        trajectory = entry.trajectory.begin(1 + self.settings.depth) if is_shown else None
        return Example(tokens, ((at, len(tokens)),), "recorded run", number, trajectory=trajectory)
