"""The command line. Answers go to stdout, everything else to stderr; torch is imported only when a model is needed."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import gesso
from gesso.cli.bench import bench
from gesso.cli.chat import chat
from gesso.cli.decide import decide
from gesso.cli.defaults import config_path, read_defaults
from gesso.cli.demo import demo
from gesso.cli.distill import distill
from gesso.cli.eval import evaluate
from gesso.cli.generate import generate
from gesso.cli.help import Command, Group
from gesso.cli.info import info
from gesso.cli.memory import advice, ran_out
from gesso.cli.merge import merge
from gesso.cli.models import models, rm
from gesso.cli.options import EXIT_CODES
from gesso.cli.ps import ps
from gesso.cli.pull import pull
from gesso.cli.push import push
from gesso.cli.quantize import quantize
from gesso.cli.rewriting import edit, infill
from gesso.cli.serve import serve
from gesso.cli.settings import settings
from gesso.cli.sudoku import CODES, sudoku
from gesso.cli.terminal import complain, prepare, print_text, show_cursor
from gesso.cli.trace import trace
from gesso.cli.train import train
from gesso.cli.tune import tune
from gesso.cores import wait_without_spinning
from gesso.errors import DoesNotFitError, GessoError, InputError

# Of commands without options for a model, such as `gesso train`.
OUT_OF_MEMORY = "use smaller batches, shorter texts or another device"

USE = (demo, chat, generate, infill, edit, decide, sudoku, trace, serve)
TRAIN = (train, distill, merge)
MEASURE = (evaluate, tune, bench, info, settings)
MODELS = (pull, models, ps, rm, quantize, push)
NAMES = {evaluate: "eval"}

app = typer.Typer(
    help="Run DiffusionGemma on your own machine. gesso COMMAND --help explains a command.",
    epilog=EXIT_CODES,
    cls=Group,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for panel, commands in (("Use", USE), ("Train", TRAIN), ("Measure", MEASURE), ("Models", MODELS)):
    for command in commands:
        codes = CODES if command is sudoku else EXIT_CODES
        app.command(NAMES.get(command), cls=Command, epilog=codes, rich_help_panel=panel)(command)


def _version(requested: bool) -> None:
    if requested:
        print_text(f"gesso {gesso.__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


def _defaults() -> dict[str, dict[str, Any]]:
    """Return the defaults from the configuration file. Completion does without them: the file may have errors."""
    path = None if "_GESSO_COMPLETE" in os.environ else config_path()
    if path is None:
        return {}
    root = typer.main.get_command(app)
    return read_defaults(path, root.commands)  # type: ignore[attr-defined]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, and return the exit code."""
    prepare()
    wait_without_spinning()
    try:
        if not (sys.argv[1:] if arguments is None else arguments):
            arguments = ["--help"]
        code = app(args=arguments, prog_name="gesso", standalone_mode=False, default_map=_defaults()) or 0
    except typer.TyperException as error:
        complain(f"{error.format_message()} See gesso --help.")
        return error.exit_code
    except InputError as error:
        complain(str(error))
        return 2
    except DoesNotFitError as error:
        complain(f"{error}; {advice(sys.argv[1:] if arguments is None else arguments, error.fits)}")
        return 1
    except (GessoError, OSError) as error:
        complain(str(error))
        return 1
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        complain(f"out of memory: {str(error).partition(chr(10))[0]}; {OUT_OF_MEMORY}")
        return 1
    if code == 130:
        show_cursor()
    return int(code)
