"""The command line. Answers go to stdout, everything else to stderr; torch is imported only when a model is needed."""

from collections.abc import Sequence
from typing import Annotated

import typer

import gesso
from gesso.cli.bench import bench
from gesso.cli.chat import chat
from gesso.cli.decide import decide
from gesso.cli.eval import evaluate
from gesso.cli.generate import generate
from gesso.cli.info import info
from gesso.cli.options import EXIT_CODES
from gesso.cli.quantize import quantize
from gesso.cli.rewriting import edit, infill
from gesso.cli.serve import serve
from gesso.cli.sudoku import CODES, sudoku
from gesso.cli.terminal import complain, prepare, print_text, show_cursor
from gesso.cli.trace import trace
from gesso.cli.train import train
from gesso.errors import GessoError, InputError

app = typer.Typer(
    help="DiffusionGemma on your own machine.",
    epilog=EXIT_CODES,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (generate, chat, decide, infill, edit, trace, info, train, quantize):
    app.command(epilog=EXIT_CODES)(command)
app.command(epilog=CODES)(sudoku)
app.command("eval", epilog=EXIT_CODES)(evaluate)
for command in (bench, serve):
    app.command(epilog=EXIT_CODES)(command)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, and return the exit code."""
    prepare()
    try:
        code = app(args=arguments, prog_name="gesso", standalone_mode=False) or 0
    except typer.TyperException as error:
        complain(f"{error.format_message()} See gesso --help.")
        return error.exit_code
    except InputError as error:
        complain(str(error))
        return 2
    except (GessoError, OSError) as error:
        complain(str(error))
        return 1
    if code == 130:
        show_cursor()
    return int(code)
