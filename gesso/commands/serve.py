"""`gesso serve`."""

from pathlib import Path
from typing import Annotated

import typer

from gesso.errors import InputError
from gesso.options import Device, Dtype, Model, diffusion_option


def serve(
    model: Model = None,
    adapter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=DIR", help="An adapter to serve as a model; may be repeated.")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    quantize: Annotated[str | None, typer.Option(help="Pack the matrices while loading: fp8, int4 or nvfp4.")] = None,
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine only with keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    name: Annotated[str | None, typer.Option(help="What requests call the model.")] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Requests that run at once.")] = 8,
    max_length: Annotated[int | None, typer.Option(min=1, help="Tokens of prompt and answer; default: all.")] = None,
    prefill: Annotated[int, typer.Option(min=1, help="Prompt tokens read between two denoising steps.")] = 2048,
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
    drain: Annotated[float, typer.Option(help="Seconds to finish in after SIGTERM.", rich_help_panel="Limits")] = 60.0,
    settle: Annotated[int, diffusion_option("Steps after which a prefix is final; 0: with the canvas.", min=0)] = 1,
    api_key_file: Annotated[
        Path | None, typer.Option(help="Keys that clients need, one a line; or set GESSO_API_KEYS.")
    ] = None,
    without_keys: Annotated[bool, typer.Option("--without-keys", help="Let everyone in who can connect.")] = False,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Web origin whose pages may call; may be repeated.")
    ] = None,
) -> None:
    """Serve the OpenAI API; without arguments, the model in the box to this machine alone."""
    try:
        from gesso.serve import command
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gesso"):
            raise
        raise InputError(f"gesso serve needs {error.name}: pip install 'gesso[serve]'") from None
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
            drain=drain,
        ),
        name=name or ("gesso" if model is None else Path(model).name),
        keys=keys,
        cors_origins=tuple(cors_origin or ()),
        settle=settle,
        hosts=command.check_keys(host, keys, without_keys),
    )
    command.serve(settings, host, port)


def _named(adapter: str) -> tuple[str, str]:
    name, equals, directory = adapter.partition("=")
    if not (name and equals and directory):
        raise InputError(f"--adapter takes a name and a directory, like sql=adapters/sql; got {adapter!r}")
    return name, directory
