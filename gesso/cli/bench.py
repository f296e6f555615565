"""`gesso bench`."""

from pathlib import Path
from typing import Annotated

import typer

from gesso.cli.options import Dtype, Model
from gesso.cli.terminal import print_json, print_styled
from gesso.errors import InputError


def bench(
    what: Annotated[
        str,
        typer.Argument(
            help="model: how fast it writes; step: where the time of a step goes; kernels: each by itself, on a GPU; "
            "train: steps on random weights; guide: what a constraint costs a step; serve: many clients at once; "
            "settle: how soon a stream has text to show."
        ),
    ] = "model",
    shape: Annotated[str, typer.Option(help="mini (the model in the box, from scratch) or 26b-a4b (LoRA).")] = "mini",
    steps: Annotated[int, typer.Option(min=1, help="Timed steps, after two that warm up.")] = 5,
    count: Annotated[int, typer.Option(min=1, help="settle: held-out items of each task.")] = 100,
    preset: Annotated[str, typer.Option(help="settle: with these settings.")] = "balanced",
    model: Model = None,
    dtype: Dtype = None,
    quantize: Annotated[
        str | None, typer.Option(help="model, step, serve: pack the weights: fp8, int4 or nvfp4[-layers].")
    ] = None,
    batches: Annotated[str | None, typer.Option(metavar="N,N", help="model, step: requests at once.")] = None,
    prompt: Annotated[int | None, typer.Option(min=2, help="model, step: tokens of each prompt.")] = None,
    new: Annotated[int | None, typer.Option(min=1, help="model, serve: tokens to write to each.")] = None,
    peer: Annotated[str | None, typer.Option(help="model: transformers, in the same run.")] = None,
    plot: Annotated[Path | None, typer.Option(help="model: tokens a second by batch, as SVG.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="model, serve --attacks: everything as one JSON object.")
    ] = False,
    only: Annotated[str | None, typer.Option(help="kernels: those with this in their name.")] = None,
    compile: Annotated[bool, typer.Option("--compile", help="With torch.compile.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; without it, the first GPU or the CPU.")] = None,
    fields: Annotated[int, typer.Option(min=1, help="guide: properties of the JSON schema.")] = 50,
    url: Annotated[str | None, typer.Option(help="serve: a running server; without it, one of its own.")] = None,
    clients: Annotated[int, typer.Option(min=1, help="serve: how many at once.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.1, help="serve: how long.")] = 60.0,
    max_batch: Annotated[int | None, typer.Option(min=1, help="serve: requests that run at once.")] = None,
    disconnects: Annotated[
        int | None, typer.Option(min=1, help="serve: instead, so many clients that hang up, and what they leave.")
    ] = None,
    attacks: Annotated[
        bool, typer.Option("--attacks", help="serve: instead, a well-behaved client beside denial-of-service attacks.")
    ] = False,
    letters: Annotated[str | None, typer.Option(metavar="A,B", help="serve --attacks: only these, by letter.")] = None,
    soak: Annotated[
        float | None, typer.Option(min=0.1, help="serve: instead, minutes of mixed, hostile and crashing use.")
    ] = None,
) -> None:
    """Measure what this machine does."""
    if what == "model":
        from gesso.bench import model as writing

        found = writing.bench(
            model, device=device, dtype=dtype, quantize=quantize, batches=batches, prompt=prompt, new=new, peer=peer
        )
        if plot is not None:
            plot.write_text(writing.draw(found), encoding="utf-8")
        print_json(found) if json else print_styled(lambda console: writing.render(found, console))
    elif what == "step":
        from gesso.bench import step

        print_json(step.measure(model, device=device, dtype=dtype, quantize=quantize, batches=batches, prompt=prompt))
    elif what == "kernels":
        from gesso.bench import kernels

        print_json([row.to_dict() for row in kernels.best(kernels.measure(only))])
    elif what == "train":
        from gesso.api import find_device
        from gesso.bench import train

        print_json(train.measure(shape, steps, find_device(device), compile))
    elif what == "guide":
        from gesso.bench import guide

        print_json(guide.measure(fields, steps))
    elif what == "serve":
        from gesso.bench import hangups
        from gesso.bench import serve as load_test

        if attacks:
            from gesso.bench import under_attack

            measured = under_attack.measure(url, letters)
            print_json(measured) if json else print_styled(lambda console: under_attack.render(measured, console))
        elif soak is not None:
            from gesso.bench import soak as soaking

            print_json(soaking.measure(url, soak))
        elif disconnects is not None:
            print_json(hangups.measure(url, disconnects))
        else:
            arguments = {"--model": model, "--device": device, "--quantize": quantize, "--max-batch": max_batch}
            given = [str(word) for pair in arguments.items() if pair[1] is not None for word in pair]
            print_json(load_test.measure(url, clients, seconds, new, given))
    elif what == "settle":
        from gesso.bench import settle

        print_json(settle.measure(model, preset, count))
    else:
        raise InputError(
            f"nothing to measure by the name of {what!r}; "
            "known are model, step, kernels, train, guide, serve and settle"
        )
