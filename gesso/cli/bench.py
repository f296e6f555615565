"""`gesso bench`."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import gesso
from gesso.cli.options import ModelOptions, rule_of, with_options
from gesso.cli.terminal import print_json, print_styled
from gesso.errors import InputError
from gesso.memory.allocator import allocator_settings
from gesso.progress import Progress
from gesso.settings import SETTINGS

SUBJECTS = ("model", "step", "kernels", "images", "train", "constraints", "schemas", "serve")


@with_options
def bench(
    what: Annotated[
        str,
        typer.Argument(
            help="model: generation speed; step: time of a step by group of kernels; kernels: each kernel alone; "
            "images: vision passes and prompts with images; train: training steps on random weights; "
            "constraints: cost of a constraint per step; "
            "schemas: JSON schemas that compile, and texts of them; serve: many clients."
        ),
    ] = "model",
    shape: Annotated[str, typer.Option(help="train: mini (gesso-mini from scratch) or 26b-a4b (LoRA).")] = "mini",
    rank: Annotated[
        int | None, typer.Option(min=1, help="model, step, train: rank of the adapters, 16 by default.")
    ] = None,
    targets: Annotated[str | None, typer.Option(metavar="GROUP,GROUP", help="train: weights with an adapter.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="train (rounded up to even), constraints: timed steps.")] = 5,
    batches: Annotated[
        str | None, typer.Option(metavar="N,N", help="model, step, train: batch sizes; only one for the last two.")
    ] = None,
    prompt: Annotated[int | None, typer.Option(min=2, help="model, step, train: tokens per prompt.")] = None,
    new: Annotated[
        int | None, typer.Option(min=1, help="model, serve, train: tokens to generate per request, or to train.")
    ] = None,
    adapters: Annotated[
        int, typer.Option(min=0, help="model: also measure with this many random adapters; step: measure with them.")
    ] = 0,
    constrained: Annotated[
        bool, typer.Option("--constrained", help="model: measure steps under a JSON schema beside free ones instead.")
    ] = False,
    sampler: Annotated[
        str, typer.Option(metavar="NAME|MODULE:NAME", help="model, step: sampler of the canvases.")
    ] = "entropy-bound",
    stopping: Annotated[
        str, typer.Option(metavar="NAME|MODULE:NAME", help="model, step: stopping rule of the canvases.")
    ] = "fixed",
    peer: Annotated[str | None, typer.Option(help="model: also measure transformers, or llama.cpp.")] = None,
    plot: Annotated[Path | None, typer.Option(help="model: write tokens per second by batch size as SVG.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="model, step, images, schemas: print everything as one JSON object.")
    ] = False,
    compare: Annotated[
        Path | None, typer.Option(metavar="FILE", help="step: show the differences to an earlier run with --json.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="kernels: only those whose name contains this.")] = None,
    compile: Annotated[bool, typer.Option("--compile", help="train: use torch.compile.")] = False,
    fields: Annotated[int, typer.Option(min=1, help="constraints: properties of the JSON schema.")] = 50,
    data: Annotated[
        Path | None,
        typer.Option(help="schemas: directory of .json, .jsonl or .parquet files; default: our own sample."),
    ] = None,
    answers: Annotated[int, typer.Option(min=0, help="schemas: random texts per schema.")] = 10,
    limit: Annotated[int | None, typer.Option(min=1, help="schemas: at most so many of each subset.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="schemas: processes.")] = 1,
    url: Annotated[str | None, typer.Option(help="serve: a running server; default: start one.")] = None,
    clients: Annotated[int, typer.Option(min=1, help="serve: number of clients.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.1, help="serve: duration.")] = 60.0,
    max_batch: Annotated[int | None, typer.Option(min=1, help="serve: largest batch of the server.")] = None,
    *,
    loading: ModelOptions,
) -> None:
    """Measure speed and memory on this machine."""
    rules = {"sampler": rule_of(sampler, SETTINGS["sampler"]), "stopping": rule_of(stopping, SETTINGS["stopping"])}
    if what == "model" and constrained:
        from gesso.bench import constrained as under_schema

        found = under_schema.bench(
            loading.model, batches=batches, prompt=prompt, threads=loading.threads, **loading.keywords()
        )
        print_json(found)
    elif what == "model":
        from gesso.bench import model as generation

        found = generation.bench(
            loading.model, batches=batches, prompt=prompt, new=new, peer=peer, adapters=adapters, rank=rank or 16,
            threads=loading.threads, rules=rules, **loading.keywords(),
        )  # fmt: skip
        if plot is not None:
            plot.write_text(generation.draw(found), encoding="utf-8")
        print_json(found) if json else print_styled(lambda console: generation.render(found, console))
    elif what == "step":
        from gesso.bench import groups, step

        before = None if compare is None else step.earlier(compare)
        found = step.measure(
            loading.model, batches=batches, prompt=prompt, adapters=adapters, rank=rank or 16, threads=loading.threads,
            rules=rules, **loading.keywords(),
        )  # fmt: skip
        print_json(found) if json else print_styled(lambda console: groups.render(found, console, before))
    elif what == "kernels" and loading.device == "cpu":
        from gesso.bench import cpu

        print_json(cpu.measure())
    elif what == "kernels":
        from gesso.bench import kernels

        print_json([row.to_dict() for row in kernels.best(kernels.measure(only))])
    elif what == "images":
        from gesso.bench import images

        found = images.bench(loading.model, threads=loading.threads, **loading.keywords())
        print_json(found) if json else print_styled(lambda console: images.render(found, console))
    elif what == "train":
        os.environ.update(allocator_settings(os.environ))  # before torch is imported
        from gesso.bench import train
        from gesso.loading import find_device
        from gesso.memory.device import memory_of
        from gesso.train.memory import explained

        device = find_device(loading.device)
        setup = train.shape_of(
            shape,
            quantize=loading.keywords()["quantize"],
            rank=rank,
            targets=None if targets is None else targets.split(","),
            examples=None if batches is None else _one(batches),
            prompt=prompt,
            response=new,
        )
        memory = memory_of(device).budget(loading.memory)
        with explained():
            print_json(train.measure(shape, setup, steps, device, memory, compiled=compile))
    elif what == "constraints":
        from gesso.bench import constraints

        print_json(constraints.measure(fields, steps))
    elif what == "schemas":
        from gesso.bench import schemas

        model = None if loading.model is None else gesso.load(loading.model, **loading.keywords())
        with Progress() as progress:
            show = partial(progress.show, "schemas")
            found = schemas.measure(data, answers=answers, workers=workers, limit=limit, model=model, progress=show)
        print_json(found) if json else print_styled(lambda console: schemas.render(found, console))
    elif what == "serve":
        from gesso.bench import serve

        options = {"--model": loading.model, "--max-batch": max_batch, "--threads": loading.threads} | {
            f"--{name}": value for name, value in loading.keywords().items()
        }
        arguments = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
        print_json(serve.measure(url, clients, seconds, new, arguments))
    else:
        raise InputError(f"cannot measure {what!r}; expected {', '.join(SUBJECTS)}")


def _one(batches: str) -> int:
    if not batches.isdecimal():
        raise InputError(f"--batches must be one number here, got {batches!r}")
    return int(batches)
