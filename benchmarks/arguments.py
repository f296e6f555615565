"""Command lines of benchmarks: the options of the model to measure, and errors as one line."""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any

from gesso.cli.options import rule_of
from gesso.errors import GessoError
from gesso.memory.device import SHARE
from gesso.settings import SETTINGS


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser for `python -m benchmarks.MODULE` that shows the docstring of the module."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gesso bench` that choose a model, its device and its precision."""
    parser.add_argument("--model", "-m", help="a checkpoint, or random weights such as random:26b-a4b")
    parser.add_argument("--device", help="cpu or cuda; default: a GPU if there is one")
    parser.add_argument("--dtype", help="float32, bfloat16 or float16")
    parser.add_argument("--quantize", help="fp8, int4, int4-int8 or nvfp4; default: as stored")
    parser.add_argument("--memory", default=str(SHARE), help="share of the device's memory, or a size such as 12GB")
    parser.add_argument("--threads", type=int, help="on a CPU")


def model_options(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of a measurement for these options."""
    return {
        "device": asked.device,
        "dtype": asked.dtype,
        "quantize": asked.quantize,
        "memory": asked.memory,
        "threads": asked.threads,
    }


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add the options for the rules of the measured canvases."""
    from gesso.bench.model import RULES  # imports torch

    for name, default in RULES.items():
        parser.add_argument(f"--{name}", default=default, metavar="NAME|MODULE:NAME", help=f"default: {default}")


def rules_of(asked: argparse.Namespace) -> Mapping[str, Any]:
    return {name: rule_of(getattr(asked, name), SETTINGS[name]) for name in ("sampler", "stopping")}


def run(main: Callable[[], None]) -> None:
    """Run a benchmark. An error of its user is one line, with exit status 1."""
    try:
        main()
    except GessoError as error:
        sys.exit(str(error))
