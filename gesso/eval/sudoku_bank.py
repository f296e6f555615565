"""A bank of hard Sudoku puzzles, and training examples drawn from it as fast as a GPU eats them.

Making a minimal puzzle takes milliseconds, turning one into another by a symmetry and more clues takes microseconds. So
puzzles with as few clues as we can reach are made once and kept; an example is one of them, turned and relabelled at
random, with or without clues added. Example n is a function of seed and n alone: any slice of a batch can be made by
itself, and a run that stops goes on where it was.

The bank is free of kin of the test split, of `sudoku17.txt`, whatever its split, and of the puzzle files
that are named when it is made.

Arrays carry their shape: N examples, P puzzles of the bank, 81 cells.

    python -m gesso.eval.sudoku_bank data/mini/sudoku-bank.npz --processes 2 --held-out puzzles.txt
"""

import argparse
import functools
import multiprocessing
import random
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gesso.errors import InputError
from gesso.eval.sudoku_dig import ALL, ONE, Diggers, hashes, settle
from gesso.eval.sudoku_grid import CELLS, SEVENTEEN, kinship, read_puzzles, solutions, solved_grid
from gesso.eval.task import split_of
from gesso.files import replacing

# Puzzles with 17 clues, the fewest there can be. Digging never gets there; the file says where they are from.
TRAIN_17 = Path(__file__).with_name("sudoku17_train.txt")

DIGS = 4  # puzzles dug from one grid, each on its own
ROUNDS = 12  # tries to better the best of them
MOST_SPARSE = 21  # clues of a puzzle found near one of 17
A_JOB = 256  # grids dug side by side

# How often an example starts from a puzzle with so many clues; by the bank's own shares few would have less than 21.
SHARES: Mapping[int, float] = MappingProxyType(
    {17: 2, 18: 1, 19: 1, 20: 2, 21: 2, 22: 3, 23: 4, 24: 5, 25: 4, 26: 2, 27: 0.5}
)
HARD = 4  # times as often as another a puzzle is drawn that filling in what is forced does not solve


# --- making ---------------------------------------------------------------------------------------------------------


class Job(NamedTuple):
    """A part of the bank, made by one process: so many grids to dig, or tries at neighbours of 17-clue puzzles."""

    kind: str
    seed: int
    start: int
    stop: int


def _work(job: Job) -> "Bank":
    made = (_grid(job, n) for n in range(job.start, job.stop))
    kept = [pair for pair in made if pair]
    grids = np.array([[int(d) for d in solution] for solution, _ in kept], np.uint8).reshape(-1, 81)
    core = np.array([[d != "0" for d in clues] for _, clues in kept], bool).reshape(-1, 81)
    if job.kind == "known":
        return Bank(grids, core)
    diggers = Diggers(grids, random.Random(f"sudoku bank {job}").getrandbits(31))
    full = np.ones_like(core)
    if job.kind == "sparse":
        bank = Bank(grids, diggers.better(diggers.dig(full, first=~core), 4, ROUNDS))
        return bank[bank.given.sum(axis=1) <= MOST_SPARSE]
    found = [diggers.dig(full) for _ in range(DIGS)]
    counts = np.stack(found).sum(axis=2)
    least = np.stack(found)[counts.argmin(axis=0), np.arange(len(grids))]
    return Bank(np.tile(grids, (DIGS + 1, 1)), np.concatenate([*found, diggers.better(least, 6, ROUNDS)]))


def _grid(job: Job, n: int) -> tuple[str, str] | None:
    """A solved grid we may train on, and the clues to keep for as long as others can be taken.

    `sparse`: a clue taken from a puzzle of 17 leaves many solutions. For one of these the other 16 do most of the work,
    so that few more single it out, where digging in a random grid ends at 24.
    """
    rng = random.Random(f"sudoku bank {job.kind} {job.seed} {n}")
    if job.kind == "dug":
        while not is_trainable(solution := solved_grid(rng)):
            pass
        return solution, "0" * 81
    puzzle, solution = _known(TRAIN_17)[n % len(_known(TRAIN_17))]
    if job.kind == "sparse":
        cell = rng.choice([i for i in CELLS if puzzle[i] != "0"])
        puzzle = puzzle[:cell] + "0" + puzzle[cell + 1 :]
        solution = solutions(puzzle, limit=1, rng=rng)[0]
    return (solution, puzzle) if is_trainable(solution) else None


def is_trainable(solution: str) -> bool:
    kin = kinship(solution)
    return split_of(kin) == "train" and kin not in _held_out()


@functools.cache
def _held_out() -> frozenset[str]:
    return frozenset(kinship(solution) for _, solution in _known(SEVENTEEN))


@functools.cache
def _known(path: Path) -> tuple[tuple[str, str], ...]:
    return tuple((puzzle, solution) for _, puzzle, solution in read_puzzles(path) if solution)


# --- the bank -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bank:
    """Puzzles as their solutions and which cells are given."""

    solutions: NDArray[np.uint8]  # [P, 81], digits 1 to 9
    given: NDArray[np.bool_]  # [P, 81]

    def __len__(self) -> int:
        return len(self.solutions)

    @functools.cached_property
    def by_clues(self) -> dict[int, NDArray[np.intp]]:
        """Which puzzles have so many clues."""
        counts = self.given.sum(axis=1)
        return {int(count): np.flatnonzero(counts == count) for count in np.unique(counts)}

    @functools.cached_property
    def hard(self) -> NDArray[np.bool_]:
        """Which puzzles are not solved by filling in cells with one candidate and digits with one place."""
        found = np.zeros(len(self), bool)
        for start in range(0, len(self), A_JOB):
            given = self.given[start : start + A_JOB]
            digits = ONE << (self.solutions[start : start + A_JOB].astype(np.uint16) - ONE)
            may = np.ascontiguousarray(np.where(given, digits, ALL).T)
            settle(may)
            found[start : start + A_JOB] = (may & (may - ONE) != 0).any(axis=0)
        return found

    @functools.cached_property
    def weighed(self) -> dict[int, NDArray[np.intp]]:
        """As `by_clues`, with hard ones `HARD` times."""
        return {
            clues: np.concatenate([which, *[which[self.hard[which]]] * (HARD - 1)])
            for clues, which in self.by_clues.items()
        }

    def __getitem__(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> "Bank":
        return Bank(self.solutions[which], self.given[which])

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:  # a reader sees the old bank or the new one
            np.savez_compressed(file, solutions=self.solutions, given=np.packbits(self.given, axis=1))

    @classmethod
    def load(cls, path: Path) -> "Bank":
        try:
            with np.load(path, allow_pickle=False) as file:
                found, given = file["solutions"], np.unpackbits(file["given"], axis=1, count=81).astype(bool)
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} is no bank of Sudoku puzzles ({error}); make one: see {__name__}") from None
        if found.dtype != np.uint8 or found.shape != given.shape or not len(found):
            raise InputError(f"{path} is no bank of Sudoku puzzles: its arrays are not of one shape; make it anew")
        return cls(found, given)


def build(
    out: Path,
    *,
    grids: int,
    sparse: int,
    seed: int,
    held_out: Sequence[Path] = (),
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Bank:
    """Make a bank and write it: all known puzzles of 17 clues, tries for 18 to 21, and grids dug to the end.

    No grid in it is kin of a puzzle in the files `held_out`. The bank is a function of the counts, the seed and these
    files, whatever the number of processes.
    """
    jobs = [
        Job(kind, seed, start, min(start + A_JOB, count))
        for kind, count in (("known", len(_known(TRAIN_17))), ("sparse", sparse), ("dug", grids))
        for start in range(0, count, A_JOB)
    ]
    parts = []
    for part in _results(jobs, processes):
        parts.append(part)
        if progress:
            progress(len(parts), len(jobs))
    bank = Bank(np.concatenate([p.solutions for p in parts]), np.concatenate([p.given for p in parts]))
    _, first = np.unique(np.where(bank.given, bank.solutions, np.uint8(0)), axis=0, return_index=True)
    bank = without_kin(bank[np.sort(first)], held_out)
    bank.save(out)
    return bank


def without_kin(bank: Bank, held_out: Sequence[Path]) -> Bank:
    tested = {kinship(solutions(puzzle, limit=1)[0]) for path in held_out for _, puzzle, _ in read_puzzles(path)}
    kin = functools.cache(lambda solution: kinship("".join(map(str, solution))))
    return bank[np.array([kin(solution.tobytes()) not in tested for solution in bank.solutions], bool)]


def _results(jobs: list[Job], processes: int) -> Iterator[Bank]:
    if processes == 1:
        yield from map(_work, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(_work, jobs)


# --- drawing --------------------------------------------------------------------------------------------------------


def draw(
    bank: Bank,
    numbers: NDArray[np.int64],
    seed: int,
    *,
    clues: tuple[int, int] = (17, 36),
    plain: float = 0.75,
    shares: Mapping[int, float] = SHARES,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Puzzles and solutions [N, 81] of the examples with these numbers; 0 is an empty cell.

    `shares` weighs the puzzles of the bank by their number of clues; numbers it does not name are not drawn. Of those
    with as many clues hard ones come `HARD` times as often. A share
    `plain` of the puzzles stay as sparse as they are in the bank; the others are filled up to a number of clues drawn
    evenly from their own to the upper end of `clues`. All are filled up to its lower end.
    """
    low, high = clues
    if not 17 <= low <= high <= 81:
        raise InputError(f"clues must be a range within 17 to 81, got {low} to {high}")
    lanes = hashes(numbers, seed, 37 + 81)
    which, coin, more, flip = (lanes[:, i] for i in range(4))
    base = _base(bank, which, flip >> np.uint64(1), shares)[:, None]

    rows = _lines(lanes[:, 4:16])
    columns = _lines(lanes[:, 16:28])
    down = np.where(flip & np.uint64(1) == 0, 9, 1).astype(np.intp)[:, None, None]
    cells = (down * rows[:, :, None] + (10 - down) * columns[:, None, :]).reshape(-1, 81)
    labels = np.argsort(lanes[:, 28:37], axis=1).astype(np.uint8) + np.uint8(1)
    old = bank.solutions.take(81 * base + cells).astype(np.intp)
    solution = labels.take(9 * np.arange(len(labels))[:, None] + old - 1)
    given = bank.given.take(81 * base + cells)

    count = given.sum(axis=1)
    span = np.maximum(high - count, 0) + 1
    wanted = np.where(_unit(coin) < plain, count, count + (_unit(more) * span).astype(np.int64))
    keys = np.where(given, np.uint64(0), lanes[:, 37:] | np.uint64(1))  # what is given comes first
    last = np.maximum(np.maximum(wanted, low), count) - 1
    given = keys <= np.take_along_axis(np.sort(keys, axis=1), last[:, None], axis=1)
    return np.where(given, solution, np.uint8(0)), solution


def _base(
    bank: Bank, level: NDArray[np.uint64], which: NDArray[np.uint64], shares: Mapping[int, float]
) -> NDArray[np.intp]:
    """The puzzles of the bank [N] that two random numbers each stand for: the one its clues, the other one of these."""
    known = {clues: share for clues, share in shares.items() if share > 0 and clues in bank.by_clues}
    if not known:
        raise InputError(
            f"the bank has no puzzles with {', '.join(map(str, shares)) or 'no'} clues; it has some with "
            f"{', '.join(map(str, sorted(bank.by_clues)))}"
        )
    ends = np.cumsum([*known.values()])
    at = np.searchsorted(ends, _unit(level) * ends[-1], side="right")
    sizes = np.array([len(bank.weighed[clues]) for clues in known])
    starts = np.cumsum(sizes) - sizes
    inside = (which % sizes[at].astype(np.uint64)).astype(np.intp)
    return np.concatenate([bank.weighed[clues] for clues in known])[starts[at] + inside]


def _lines(keys: NDArray[np.uint64]) -> NDArray[np.intp]:
    """An order of the nine rows [N, 9] from twelve random numbers: that of the bands, and that within each band."""
    bands = np.argsort(keys[:, :3], axis=1)
    inner = np.argsort(keys[:, 3:].reshape(-1, 3, 3), axis=2)
    return (3 * bands[:, :, None] + inner).reshape(-1, 9)


def _unit(x: NDArray[np.uint64]) -> NDArray[np.float64]:
    return (x >> np.uint64(11)) / np.float64(1 << 53)


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description="Make a bank of Sudoku puzzles.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--grids", type=int, default=10_240, help="random grids to dig, five puzzles each")
    parser.add_argument("--sparse", type=int, default=6_144, help="tries for puzzles of 18 to 21 clues")
    parser.add_argument("--held-out", type=Path, nargs="*", default=[], help="files of puzzles to be tested on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()

    def progress(done: int, of: int) -> None:
        print(f"\r{done} of {of}", end="", file=sys.stderr, flush=True)

    bank = build(progress=progress, **vars(options))
    print(f"\n{len(bank)} puzzles of {len(np.unique(bank.solutions, axis=0))} grids; by clues:", file=sys.stderr)
    for clues, puzzles in sorted(Counter(bank.given.sum(axis=1).tolist()).items()):
        print(f"{clues:4} {puzzles:7}", file=sys.stderr)


if __name__ == "__main__":
    main()
