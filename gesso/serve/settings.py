"""Settings of a server."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from gesso.errors import InputError
from gesso.info.device import SHARE, read_memory
from gesso.settings import DecodeName

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
    decode: DecodeName = "auto"  # how requests are written that leave it open

    def __post_init__(self) -> None:
        read_memory(self.memory)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on the requests of one client or of all clients. docs/guides/security.md explains the defaults."""

    queue: int = 256  # requests waiting to be prepared, and requests waiting for the engine; more get 429
    request_tokens: int | None = None  # prompt and answer of one request; by default the context
    total_tokens: int | None = None  # of all waiting and running requests; by default unlimited
    choices: int = 16  # `n` of one request
    max_adapters: int = 32  # loaded at once, those of `--adapter` included
    body_bytes: int = 8 * 2**20  # without images
    image_bytes: int = 96 * 2**20  # of the images of one request: as sent, as fetched, and as the model reads them
    timeout: float = 600.0  # seconds for an answer, including the time in the queue
    head_timeout: float = 10.0  # seconds for a client to send a complete request head
    io_timeout: float = 30.0  # seconds for a client to send its body, or to read a part of the answer
    drain: float = 60.0  # seconds for running requests to finish after SIGTERM or SIGHUP
    connections: int = 4096  # open at once; fewer if the system allows fewer open files
    prepare_seconds: int = 5  # CPU time to parse, check and tokenize one request
    compile_seconds: int = 10  # CPU time to compile one constraint
    prepare_bytes: int = 2**30  # memory for either of these
    heartbeat: float = 30.0  # seconds after which an engine without heartbeats is replaced; request readers: half of it
    step_timeout: float = 300.0  # seconds for one engine step, including kernel compilation
    stored_responses: int = 1000  # of /v1/responses, in memory; 0 stores none
    stored_bytes: int = 64 * 2**20  # of these together, with their conversations
    stored_seconds: float = 3600.0  # after which a stored response is dropped

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
    limits: Limits = field(default_factory=Limits)
    name: str = "gesso"  # of the model, in requests and answers
    keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    settle: int = 1  # default of `Diffusion.settle` for requests
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
        engine, limits = EngineSettings(**fields["engine"]), Limits(**fields["limits"])
        lists = {name: tuple(fields[name]) for name in ("cors_origins", "also")}
        return cls(**{**fields, **lists, "engine": engine, "limits": limits, "keys": ()})
