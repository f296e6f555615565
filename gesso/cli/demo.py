"""`gesso demo`."""

import io
import os
import sys

import typer

from gesso.cli.terminal import print_text
from gesso.demo import EXAMPLES, DemoExample

NEXT = """\
Next:
  gesso chat             ask "What can you do?"
  gesso serve --open     see a canvas change step by step, in your browser; needs pip install 'gesso-lm[serve]' once
  gesso --help           all commands"""


def demo(context: typer.Context) -> None:
    """Run four examples of the bundled models: two Sudokus, a missing line of code, a tool call."""
    os.environ.pop("GESSO_MODEL", None)  # the answers are those of the bundled models
    for number, example in enumerate(EXAMPLES, start=1):
        print_text(f"{number}/{len(EXAMPLES)}  {example.title}\n$ {example.command}")
        _run(example, context)
        print_text("")
    print_text(NEXT)


def _run(example: DemoExample, context: typer.Context) -> None:
    """Run the command of an example in this process, without defaults from the configuration file.

    Another process would import torch again, which takes longer than the example.
    """
    root = context.find_root().command
    stdin = sys.stdin
    sys.stdin = io.StringIO(example.stdin)
    try:
        code = root.main(args=example.words, prog_name="gesso", standalone_mode=False)
    finally:
        sys.stdin = stdin
    if code:
        raise typer.Exit(code)
