"""`gesso sudoku`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gesso.bundled import SOLVER
from gesso.cli.images import open_pictures
from gesso.cli.options import EXIT_CODES, Json, Live, LoadOptions, Seed, SettingOptions, with_options
from gesso.cli.terminal import note, print_json, print_text
from gesso.errors import InputError

ATTEMPTS = 4
CODES = f"{EXIT_CODES} An unsolved puzzle gives 1."


@with_options
def sudoku(
    puzzle: Annotated[
        str | None,
        typer.Argument(
            metavar="PUZZLE", help="81 digits with 0 or . for an empty cell, a file of such lines, or - for stdin."
        ),
    ] = None,
    images: Annotated[
        list[Path] | None, typer.Option("--image", help="Picture of a puzzle, in place of PUZZLE; may be repeated.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", envvar="GESSO_MODEL", help=f"Directory or hub name of a checkpoint; default: {SOLVER}."
        ),
    ] = None,
    attempts: Annotated[
        int, typer.Option(min=1, help="Most attempts per puzzle. Retries use a symmetry of the puzzle.")
    ] = ATTEMPTS,
    seed: Seed = None,
    live: Live = True,
    json: Json = False,
    *,
    loading: LoadOptions,
    denoising: SettingOptions,
) -> None:
    """Solve Sudokus by diffusion, all cells at once."""
    from gesso.cli import sudoku_view as solving

    if (puzzle is None) == (not images):
        raise InputError("give a puzzle or --image FILE, and not both")
    puzzles = [] if puzzle is None else solving.read(puzzle)
    pictures = open_pictures(images or [])
    settings = denoising.diffusion()
    solver = replace(loading, model=model).load(SOLVER)
    for name, picture in pictures:
        puzzles.append(solving.read_picture(solver, picture, name))
        if not json:
            note(f"{name} shows\n{puzzles[-1].lines()}")
    solved = 0
    for given_puzzle in puzzles:
        name = f"{given_puzzle.name}: " if len(puzzles) > 1 else ""
        watch = live and not json
        for attempt in solving.attempts(solver, given_puzzle, most=attempts, watch=watch, seed=seed, **settings):
            if not attempt.solved and attempt.number < attempts and not json:
                note(f"{name}attempt {attempt.number}: {attempt.verdict()}; trying again")
        solved += attempt.solved
        if json:
            print_json(attempt.to_dict())
            continue
        print_text(attempt.lines() if sys.stdout.isatty() else attempt.answer)
        note(name + attempt.verdict())
    if len(puzzles) > 1 and not json:
        note(f"{solved} of {len(puzzles)} solved")
    if solved < len(puzzles):
        raise typer.Exit(1)
