"""`gesso bench`."""

from pathlib import Path
from typing import Annotated

import typer

from gesso.cli.options import ModelOptions, rule_of, with_options
from gesso.cli.terminal import print_json, print_styled
from gesso.errors import InputError
from gesso.settings import SETTINGS

SUBJECTS = ("model", "serve")
# Subjects of earlier versions, which are modules of benchmarks/ in the repository now.
MOVED = ("step", "kernels", "images", "train", "constraints", "schemas")


@with_options
def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="|".join(SUBJECTS),
            help="model: milliseconds per step, tokens per second, prefill and memory; serve: a server with many "
            "clients.",
        ),
    ] = "model",
    batches: Annotated[str | None, typer.Option(metavar="N,N", help="model: batch sizes.")] = None,
    prompt: Annotated[int | None, typer.Option(min=2, help="model: tokens per prompt.")] = None,
    new: Annotated[int | None, typer.Option(min=1, help="Tokens to generate per request.")] = None,
    sampler: Annotated[
        str, typer.Option(metavar="NAME|MODULE:NAME", help="model: sampler of the canvases.")
    ] = "entropy-bound",
    stopping: Annotated[
        str, typer.Option(metavar="NAME|MODULE:NAME", help="model: stopping rule of the canvases.")
    ] = "fixed",
    plot: Annotated[Path | None, typer.Option(help="model: write tokens per second by batch size as SVG.")] = None,
    json: Annotated[bool, typer.Option("--json", help="model: print everything as one JSON object.")] = False,
    url: Annotated[str | None, typer.Option(help="serve: a running server; default: start one.")] = None,
    clients: Annotated[int, typer.Option(min=1, help="serve: number of clients.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.1, help="serve: duration.")] = 60.0,
    max_batch: Annotated[int | None, typer.Option(min=1, help="serve: largest batch of the server.")] = None,
    *,
    loading: ModelOptions,
) -> None:
    """Measure speed and memory on this machine."""
    if what == "model":
        from gesso.bench import model as generation

        rules = {"sampler": rule_of(sampler, SETTINGS["sampler"]), "stopping": rule_of(stopping, SETTINGS["stopping"])}
        report = generation.bench(
            loading.model,
            batches=batches,
            prompt=prompt,
            new=new,
            threads=loading.threads,
            rules=rules,
            **loading.keywords(),
        )
        if plot is not None:
            plot.write_text(generation.draw(report), encoding="utf-8")
        if json:
            print_json(report)
        else:
            print_styled(lambda console: generation.render(report, console))
    elif what == "serve":
        from gesso.bench import serve

        options = {"--model": loading.model, "--max-batch": max_batch, "--threads": loading.threads} | {
            f"--{name}": value for name, value in loading.keywords().items()
        }
        arguments = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
        print_json(serve.measure(url, clients, seconds, new, arguments))
    elif what in MOVED:
        raise InputError(f"gesso bench {what} has moved: use python -m benchmarks.{what} in a clone of the repository")
    else:
        raise InputError(f"cannot measure {what!r}; expected {' or '.join(SUBJECTS)}")
