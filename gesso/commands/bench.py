"""`gesso bench`."""

from typing import Annotated

import typer

from gesso.errors import InputError
from gesso.options import Model
from gesso.terminal import print_json


def bench(
    what: Annotated[
        str,
        typer.Argument(
            help="train: steps on random weights; guide: what a constraint costs a step; serve: many clients at once; "
            "settle: how soon a stream has something to show."
        ),
    ],
    shape: Annotated[str, typer.Option(help="mini (the model in the box, from scratch) or 26b-a4b (LoRA).")] = "mini",
    steps: Annotated[int, typer.Option(min=1, help="Timed steps, after two that warm up.")] = 5,
    count: Annotated[int, typer.Option(min=1, help="settle: held-out items of each task.")] = 100,
    preset: Annotated[str, typer.Option(help="settle: with these settings.")] = "balanced",
    model: Model = None,
    compile: Annotated[bool, typer.Option("--compile", help="With torch.compile.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; without it, the first GPU or the CPU.")] = None,
    fields: Annotated[int, typer.Option(min=1, help="guide: properties of the JSON schema.")] = 50,
    url: Annotated[str | None, typer.Option(help="serve: a running server; without it, one of its own.")] = None,
    clients: Annotated[int, typer.Option(min=1, help="serve: how many at once.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.1, help="serve: how long.")] = 60.0,
    disconnects: Annotated[
        int | None, typer.Option(min=1, help="serve: instead, so many clients that hang up, and what they leave.")
    ] = None,
) -> None:
    """Measure what this machine does; one JSON object."""
    if what == "train":
        from gesso.api import find_device
        from gesso.bench import train

        print_json(train.measure(shape, steps, find_device(device), compile))
    elif what == "guide":
        from gesso.bench import guide

        print_json(guide.measure(fields, steps))
    elif what == "serve":
        from gesso.bench import hangups
        from gesso.bench import serve as load_test

        if disconnects is not None:
            print_json(hangups.measure(url, disconnects))
        else:
            print_json(load_test.measure(url, clients, seconds))
    elif what == "settle":
        from gesso.bench import settle

        print_json(settle.measure(model, preset, count))
    else:
        raise InputError(f"nothing to measure by the name of {what!r}; known are train, guide, serve and settle")
