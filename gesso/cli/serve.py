"""`gesso serve`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from gesso.bundled import SOLVER
from gesso.cli.options import Device, Dtype, Model, setting_option
from gesso.cli.terminal import print_text
from gesso.errors import InputError
from gesso.settings import SETTINGS


def _auto(help: str, kind: type = int) -> Any:
    """An option that need not be given: `auto`, as it is by default, is what fits."""

    def read(text: str) -> Any:
        if text == "auto":
            return None
        if kind is int and not (text.isdecimal() and int(text) > 0):
            raise typer.BadParameter(f"{text!r} is neither a number above 0 nor auto")
        return kind(text)

    metavar = "N|auto" if kind is int else "fp8|int4|nvfp4[-layers]|none|auto"
    return typer.Option(parser=read, metavar=metavar, help=help, show_default="auto", rich_help_panel="What fits")


def serve(
    model: Model = None,
    adapter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=DIR", help="An adapter to serve as a model; may be repeated.")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    quantize: Annotated[
        str | None, _auto("Weights packed while loading, or none: packed only where they would not fit.", str)
    ] = None,
    memory: Annotated[float, typer.Option(help="Share of the device's memory that may be used.")] = 0.9,
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine only with keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    name: Annotated[str | None, typer.Option(help="What requests call the model.")] = None,
    max_batch: Annotated[int | None, _auto("Requests that run at once.")] = None,
    max_length: Annotated[int | None, _auto("Tokens of prompt and answer.")] = None,
    prefill: Annotated[int | None, _auto("Prompt tokens read between two denoising steps.")] = None,
    queue: Annotated[
        int, typer.Option(min=1, help="Requests that may wait; more get 429.", rich_help_panel="Limits")
    ] = 256,
    request_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of one request.", rich_help_panel="Limits")
    ] = None,
    total_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of all requests under way.", rich_help_panel="Limits")
    ] = None,
    body_bytes: Annotated[int, typer.Option(min=1, help="Size of a request.", rich_help_panel="Limits")] = 8 * 2**20,
    timeout: Annotated[float, typer.Option(help="Seconds for an answer.", rich_help_panel="Limits")] = 600.0,
    io_timeout: Annotated[
        float, typer.Option(help="Seconds a client may take to send, or to read.", rich_help_panel="Limits")
    ] = 30.0,
    head_timeout: Annotated[
        float, typer.Option(help="Seconds a client may take to send a request head.", rich_help_panel="Limits")
    ] = 10.0,
    drain: Annotated[float, typer.Option(help="Seconds to finish in after SIGTERM.", rich_help_panel="Limits")] = 60.0,
    prepare_seconds: Annotated[
        int, typer.Option(min=1, help="CPU time to read and check one request.", rich_help_panel="Limits")
    ] = 5,
    compile_seconds: Annotated[
        int, typer.Option(min=1, help="CPU time to compile one constraint.", rich_help_panel="Limits")
    ] = 10,
    heartbeat: Annotated[
        float, typer.Option(help="Seconds after which a silent engine is replaced.", rich_help_panel="Limits")
    ] = 30.0,
    step_timeout: Annotated[
        float, typer.Option(help="Seconds after which a step that does not end is given up.", rich_help_panel="Limits")
    ] = 300.0,
    settle: Annotated[int, setting_option(SETTINGS["settle"])] = 1,
    api_key_file: Annotated[
        Path | None, typer.Option(help="Keys that clients need, one a line; or set GESSO_API_KEYS.")
    ] = None,
    without_keys: Annotated[bool, typer.Option("--without-keys", help="Let everyone in who can connect.")] = False,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Web origin whose pages may call; may be repeated.")
    ] = None,
    open: Annotated[bool, typer.Option("--open", help="Open the studio in a browser.")] = False,
    on_ray: Annotated[
        bool, typer.Option("--ray", help="On the Ray cluster of this machine.", rich_help_panel="Ray")
    ] = False,
    replicas: Annotated[
        str, typer.Option(metavar="N|LEAST-MOST", help="With --ray: how many engines.", rich_help_panel="Ray")
    ] = "1",
    replica_cpus: Annotated[float, typer.Option(help="With --ray: processors for each.", rich_help_panel="Ray")] = 1.0,
) -> None:
    """Serve the OpenAI API and the studio; without arguments, the models in the box to this machine alone."""
    with _extra("serve"):
        from gesso.serve import run as command
    from gesso.serve.keys import read_keys
    from gesso.serve.settings import EngineSettings, Limits, ServerSettings

    keys = read_keys(api_key_file)
    settings = ServerSettings(
        engine=EngineSettings(
            model=model,
            adapters=dict(map(_named, adapter or [])),
            device=device,
            dtype=dtype,
            quantize=quantize,
            memory=memory,
            max_batch=max_batch,
            max_length=max_length,
            prefill=prefill,
        ),
        limits=Limits(
            queue=queue,
            request_tokens=request_tokens,
            total_tokens=total_tokens,
            body_bytes=body_bytes,
            timeout=timeout,
            io_timeout=io_timeout,
            head_timeout=head_timeout,
            drain=drain,
            prepare_seconds=prepare_seconds,
            compile_seconds=compile_seconds,
            heartbeat=heartbeat,
            step_timeout=step_timeout,
        ),
        name=name or ("gesso" if model is None else Path(model).name),
        keys=keys,
        cors_origins=tuple(cors_origin or ()),
        settle=settle,
        also=(SOLVER,) if model is None else (),
        hosts=command.check_keys(host, keys, without_keys),
    )
    if not on_ray:
        command.serve(settings, host, port, open_browser=open)
        return
    with _extra("ray"):
        from gesso.serve import ray
    least, most = _range(replicas)
    print_text(ray.deploy(settings, host, port, ray.Cluster(least=least, most=most, cpus=replica_cpus)))


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Imports of what a plain install does not have."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gesso"):
            raise
        raise InputError(f"gesso serve needs {error.name}: pip install '.[{name}]' in the clone") from None


def _range(replicas: str) -> tuple[int, int]:
    least, _, most = replicas.partition("-")
    if not (least.isdecimal() and (most or least).isdecimal()):
        raise InputError(f"--replicas is a number or a range, such as 2 or 1-4; got {replicas!r}")
    return int(least), int(most or least)


def _named(adapter: str) -> tuple[str, str]:
    name, equals, directory = adapter.partition("=")
    if not (name and equals and directory):
        raise InputError(f"--adapter takes a name and a directory, like sql=adapters/sql; got {adapter!r}")
    return name, directory
