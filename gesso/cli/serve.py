"""`gesso serve`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import Field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from gesso import renamed
from gesso.bundled import SOLVER
from gesso.checkpoint import aliases
from gesso.choosing import choose_apart
from gesso.cli.options import (
    CacheDir,
    Decode,
    Device,
    Dtype,
    Memory,
    Model,
    ModelArgument,
    Quantize,
    TextOnly,
    Threads,
    setting_option,
    with_options,
)
from gesso.cli.terminal import note, print_text
from gesso.cli.windows import reject_windows
from gesso.errors import InputError
from gesso.memory.device import SHARE
from gesso.serve.settings import EngineSettings, ServerLimits, ServerSettings
from gesso.settings import SETTINGS


def _auto(help: str) -> Any:
    """Return an option whose default, `auto`, is chosen by the available memory."""

    def read(text: str) -> int | None:
        if text == "auto":
            return None
        if not (text.isdecimal() and int(text) > 0):
            raise typer.BadParameter(f"{text!r} is neither a number above 0 nor auto")
        return int(text)

    return typer.Option(
        parser=read, metavar="N|auto", help=help, show_default="auto", rich_help_panel="Chosen by available memory"
    )


def _ray(help: str, *, name: str | None = None, metavar: str | None = None) -> Any:
    return typer.Option(*([name] if name else []), help=help, metavar=metavar, rich_help_panel="Ray")


def _limit(declared: "Field[Any]") -> tuple[str, Any, Any]:
    """Return a limit as a field of a dataclass of options: name, type and default."""
    help, least = declared.metadata["help"], declared.metadata["least"]
    option = typer.Option(help=help, min=least, rich_help_panel="ServerLimits")
    return declared.name, Annotated[declared.type, option], declared.default


LimitOptions: Any = make_dataclass(
    "LimitOptions",
    [_limit(declared) for declared in fields(ServerLimits) if declared.metadata["help"]],
    frozen=True,
    kw_only=True,
)


@with_options
def serve(
    model_argument: ModelArgument = None,
    model: Model = None,
    adapter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=DIR", help="An adapter to serve as a model; may be repeated.")
    ] = None,
    adapter_dir: Annotated[
        Path | None, typer.Option(help="Directory of adapters that requests may load while the server runs.")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    quantize: Quantize = "auto",
    memory: Memory = str(SHARE),
    host: Annotated[str, typer.Option(help="Address to listen at; remote access needs keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="Name of the model in requests.")] = None,
    max_batch: Annotated[int | None, _auto("Requests that run at once.")] = None,
    max_length: Annotated[int | None, _auto("Context: tokens of prompt and answer.")] = None,
    prefill: Annotated[int | None, _auto("Prompt tokens encoded between two denoising steps.")] = None,
    write: Annotated[str | None, setting_option(SETTINGS["write"])] = None,
    decode: Decode = None,
    threads: Threads = None,
    cache_dir: CacheDir = None,
    text_only: TextOnly = False,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File of API keys, one per line; or set GESSO_API_KEYS.")
    ] = None,
    without_keys: Annotated[bool, typer.Option("--without-keys", help="Allow remote access without keys.")] = False,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Web origin whose pages may call the API; may be repeated.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Reject unsupported fields of requests instead of ignoring them.")
    ] = False,
    allow_remote_images: Annotated[
        bool, typer.Option("--allow-remote-images", help="Fetch images from the public URLs in requests.")
    ] = False,
    open: Annotated[bool, typer.Option("--open", help="Open the studio in a browser.")] = False,
    on_ray: Annotated[bool, _ray("Run on the Ray cluster of this machine.", name="--ray")] = False,
    replicas: Annotated[str, _ray("With --ray: number of engines.", metavar="N|LEAST-MOST")] = "1",
    replica_cpus: Annotated[float, _ray("With --ray: processors per engine.")] = 1.0,
    *,
    limits: LimitOptions,
) -> None:
    """Serve the APIs of OpenAI, Anthropic, Ollama and llama.cpp, and the studio.

    Without arguments, serve the bundled models to this machine only.
    """
    reject_windows("gesso serve")
    with _needs_extra("serve"):
        from gesso.serve import run
    from gesso.checkpoint.find import find
    from gesso.checkpoint.random_weights import is_random
    from gesso.serve.keys import read_keys

    keys = read_keys(api_key_file)
    hosts = run.check_keys(host, keys, without_keys)
    model = model_argument or model
    name = name or ("gesso" if model is None else Path(model).name)
    if aliases.is_automatic(model) and not on_ray:  # each replica chooses for its own machine
        choice = choose_apart(device, memory, quantize)
        note(choice.reason)
        model, quantize = choice.name, choice.quantize or quantize
    if adapter_dir is not None and not adapter_dir.is_dir():
        raise InputError(f"--adapter-dir: there is no directory {str(adapter_dir)!r}")
    settings = ServerSettings(
        engine=EngineSettings(
            model=model,
            adapters=dict(map(_adapter, adapter or [])),
            device=device,
            dtype=dtype,
            quantize=None if quantize == "auto" else quantize,
            memory=memory,
            max_batch=max_batch,
            max_length=max_length,
            prefill=prefill,
            write=renamed.translated({"write": write, "decode": decode})["write"],
            threads=threads,
            cache_dir=None if cache_dir is None else str(cache_dir.expanduser().resolve()),
            text_only=text_only,
        ),
        limits=ServerLimits(**vars(limits)),
        name=name,
        keys=keys,
        cors_origins=tuple(cors_origin or ()),
        strict=strict,
        remote_images=allow_remote_images,
        also=(SOLVER,) if model is None else (),
        hosts=hosts,
        adapter_dir=None if adapter_dir is None else str(adapter_dir.resolve()),
    )
    if not on_ray:
        # A download may take an hour, so report an address in use before it.
        run.listen(host, port, limits.io_timeout).close()
        if not is_random(model):
            find(model)
        run.serve(settings, host, port, open_browser=open)
        return
    with _needs_extra("ray"):
        from gesso.serve import ray
    least, most = _range(replicas)
    note(ray.WITHOUT_STORE)
    print_text(ray.deploy(settings, host, port, ray.Cluster(least=least, most=most, cpus=replica_cpus)))


@contextmanager
def _needs_extra(name: str) -> Iterator[None]:
    """Report which extra to install if an import fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gesso"):
            raise
        raise InputError(f"gesso serve needs {error.name}: pip install 'gesso-lm[{name}]'") from None


def _range(replicas: str) -> tuple[int, int]:
    least, _, most = replicas.partition("-")
    if not (least.isdecimal() and (most or least).isdecimal()):
        raise InputError(f"--replicas must be a number or a range, such as 2 or 1-4; got {replicas!r}")
    return int(least), int(most or least)


def _adapter(adapter: str) -> tuple[str, str]:
    name, equals, directory = adapter.partition("=")
    if not (name and equals and directory):
        raise InputError(f"--adapter must be NAME=DIR, such as sql=adapters/sql; got {adapter!r}")
    return name, directory
