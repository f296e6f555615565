"""Settings of a server."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from gesso.errors import InputError
from gesso.memory.device import SHARE, read_memory
from gesso.settings import WriteName

QUEUE_SHARE = 4  # on a shared server, one client may take a fourth of `Limits.queue`


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings of the engine process. `gesso.serve.auto` replaces None by a value that fits the available memory."""

    model: str | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)  # directory by name
    device: str | None = None
    dtype: str | None = None
    quantize: str | None = None  # "none" keeps the stored format
    memory: float | str = SHARE  # usable share of the device's memory, or a size such as 12GB
    max_batch: int | None = None
    max_length: int | None = None
    prefill: int | None = None
    threads: int | None = None  # of each engine on a CPU; None: one per physical core
    cache_dir: str | None = None  # for prompts that a CPU has read
    text_only: bool = False  # without the vision tower
    write: WriteName | None = None  # how requests are written that leave it open; None: as `gesso.load` chooses

    def __post_init__(self) -> None:
        read_memory(self.memory)


def limit(default: Any, help: str = "", least: int | None = None) -> Any:
    """Declare a limit. One with a help text is an option of `gesso serve`; `least` is its least value there."""
    return field(default=default, metadata={"help": help, "least": least})


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Limits on the requests of one client or of all clients. docs/guides/security.md explains the defaults."""

    max_adapters: int = limit(32, "Adapters loaded at once.", least=1)  # those of `--adapter` included
    # Requests waiting to be prepared, and requests waiting for the engine.
    queue: int = limit(256, "Requests that may wait; more get 429.", least=1)
    # Prompt and answer of one request; by default the context.
    request_tokens: int | None = limit(None, "Tokens of one request.", least=1)
    # Of all waiting and running requests; by default unlimited.
    total_tokens: int | None = limit(None, "Tokens of all current requests.", least=1)
    choices: int = limit(16)  # `n` of one request
    body_bytes: int = limit(8 * 2**20, "Size of a request without its images.", least=1)
    # As sent, as fetched, and as the model reads them.
    image_bytes: int = limit(96 * 2**20, "Size of the images of a request.", least=1)
    timeout: float = limit(600.0, "Seconds for an answer.")  # including the time in the queue
    io_timeout: float = limit(30.0, "Seconds for a client to send a body or to read.")  # a part of the answer
    head_timeout: float = limit(10.0, "Seconds for a client to send a request head.")
    drain: float = limit(60.0, "Seconds to finish after SIGTERM or SIGHUP.")
    connections: int = limit(4096)  # open at once; fewer if the system allows fewer open files
    prepare_seconds: int = limit(5, "CPU time to parse and check a request.", least=1)
    compile_seconds: int = limit(10, "CPU time to compile one constraint.", least=1)
    prepare_bytes: int = limit(2**30)  # memory for either of these
    # Of request readers: half of it.
    heartbeat: float = limit(30.0, "Seconds after which a silent engine or reader is replaced.")
    # Including kernel compilation.
    step_timeout: float = limit(300.0, "Seconds for one step before the engine is replaced.")
    stored_responses: int = limit(1000, "Responses to keep in memory; 0 keeps none.", least=0)  # of /v1/responses
    stored_bytes: int = limit(64 * 2**20, "Size of all responses in memory.", least=1)  # with their conversations
    stored_seconds: float = limit(3600.0, "Seconds to keep a response.")

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if name == "stored_responses" and value == 0:
                continue
            if value is not None and value <= 0:
                raise InputError(f"limit {name} must be above 0, got {value}")


def places_of_plan(max_batch: int, device: str) -> int:
    """Return how many engine requests a plan, such as infill, may run at once.

    A fourth of the batch on a GPU. One on a CPU, where two at once take as long as two in sequence, and the second one
    can use the prefill of the first.
    """
    return max(1, max_batch // 4) if device.startswith("cuda") else 1


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    engine: EngineSettings = field(default_factory=EngineSettings)
    limits: ServerLimits = field(default_factory=ServerLimits)
    name: str = "gesso"  # of the model, in requests and answers
    keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # bundled models; the engine of each starts with its first request
    strict: bool = False  # reject fields that would be ignored with a warning
    hosts: tuple[str, ...] | None = None  # accepted values of the Host header; None accepts any
    adapter_dir: str | None = None  # requests may load the adapters in this directory; None: they may load none
    remote_images: bool = False  # fetch the images whose URLs are in requests
    images: bool = False  # whether the model may see images; the server finds out

    @property
    def shared(self) -> bool:
        """Whether the server can distinguish clients, by several keys or by remote addresses."""
        return len(self.keys) > 1 or (not self.keys and self.hosts is None)

    @property
    def body_bytes(self) -> int:
        """The most bytes of a body."""
        return self.limits.body_bytes + (self.limits.image_bytes if self.images else 0)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(replace(self, keys=()))  # only the server process needs the keys

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        engine, limits = EngineSettings(**fields["engine"]), ServerLimits(**fields["limits"])
        lists = {name: tuple(fields[name]) for name in ("cors_origins", "also")}
        return cls(**{**fields, **lists, "engine": engine, "limits": limits, "keys": ()})
