"""Pictures to train on: random grids in random styles, drawn by several processes ahead of the training.

A picture is a function of the seed, its number and the fonts, and of the difficulty at the time.

B pictures, P patches, S cells.
"""

import multiprocessing
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from examples.sudoku_images.appearance import draw_style
from examples.sudoku_images.pictures import draw_picture
from examples.sudoku_images.tower import PATCH, POOL
from examples.sudoku_images.wider import widen
from gesso.eval.sudoku.grid import Symmetry
from gesso.images.process import prepare

SOLVED = "123456789456789123789123456231564897564897231897231564312645978645978312978312645"
Fonts = Sequence[str | None]  # files of fonts; None is the one that comes with Pillow
PILLOW: Fonts = (None,)
Pictures = tuple[Tensor, Tensor]  # pixels [B, P, I] of 8 bits, and digits [B, S]
Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]  # the same


def random_grid(rng: random.Random, side: int) -> str:
    """Return a grid with a random share of its cells filled: half of the grids keep the rules, and half are random.

    Random digits show that a cell cannot be guessed from the others.
    """
    full = "".join(rng.choices("123456789", k=side * side))
    if side == 9 and rng.random() < 0.5:
        full = Symmetry.draw(rng)(SOLVED)
    share = rng.uniform(0.15, 0.75)
    return "".join(digit if rng.random() < share else "0" for digit in full)


def picture(
    grid: str, rng: random.Random, difficulty: float = 1.0, held_out: bool = False, fonts: Fonts = PILLOW
) -> np.ndarray[Any, Any]:
    """Return the pixels [P, I] of a picture of a grid, as the tower reads them."""
    positions = POOL * round(len(grid) ** 0.5)
    style = widen(draw_style(rng, difficulty, held_out), rng, difficulty, fonts)
    drawn = draw_picture(grid, style, rng)
    return prepare(drawn, patch=PATCH, pool=POOL, positions=positions).patches


def batch(
    numbers: Sequence[int],
    seed: int,
    side: int,
    difficulty: float = 1.0,
    held_out: bool = False,
    fonts: Fonts = PILLOW,
) -> Pictures:
    """Return the pictures with these numbers and their digits."""
    pixels, digits = [], []
    for number in numbers:
        rng = random.Random(f"sudoku picture {seed} {held_out} {number}")
        grid = random_grid(rng, side)
        digits.append([int(digit) for digit in grid])
        pixels.append(picture(grid, rng, difficulty, held_out, fonts))
    return torch.from_numpy(np.stack(pixels)), torch.tensor(digits)


class Stream(IterableDataset[Arrays]):
    """Batches of new pictures without end. `difficulty` is shared with the processes and may change at any time.

    They are arrays: processes would pass tensors through shared memory, of which containers have little.
    """

    def __init__(self, size: int, seed: int, side: int, fonts: Fonts = PILLOW) -> None:
        self.size, self.seed, self.side, self.fonts = size, seed, side, fonts
        self.difficulty: Any = multiprocessing.Value("d", 0.0)

    def __iter__(self) -> Iterator[Arrays]:
        info = get_worker_info()
        at, of = (info.id, info.num_workers) if info else (0, 1)
        torch.set_num_threads(1)
        while True:
            numbers = range(at * self.size, (at + 1) * self.size)
            pixels, digits = batch(numbers, self.seed, self.side, self.difficulty.value, fonts=self.fonts)
            yield pixels.numpy(), digits.numpy()
            at += of


def loader(stream: Stream, workers: int) -> Iterator[Pictures]:
    """Return the batches of a stream, drawn by `workers` processes; 0: by this one."""
    arrays = DataLoader(stream, batch_size=None, num_workers=workers, collate_fn=_unchanged)
    return ((torch.from_numpy(pixels), torch.from_numpy(digits)) for pixels, digits in arrays)


def _unchanged(arrays: Any) -> Any:
    return arrays
