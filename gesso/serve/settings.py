"""What a server is told when it starts."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from gesso.errors import InputError


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What the engine process loads, and how. None: `gesso.serve.auto` chooses by the memory there is."""

    model: str | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)  # directory by name
    device: str | None = None
    dtype: str | None = None
    quantize: str | None = None  # "none": as it is stored
    memory: float = 0.9  # share of the device's memory that may be used
    max_batch: int | None = None
    max_length: int | None = None
    prefill: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.memory <= 1:
            raise InputError(f"the share of memory must be above 0 and at most 1, got {self.memory}")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What keeps one client, or all of them together, from asking too much."""

    queue: int = 256  # requests that wait; one more is answered with 429
    request_tokens: int | None = None  # prompt and answer of one request; None: the context
    total_tokens: int | None = None  # of all requests that wait or run; None: no limit
    choices: int = 16  # `n` of one request
    body_bytes: int = 8 * 2**20
    timeout: float = 600.0  # seconds for an answer, waiting included
    io_timeout: float = 30.0  # seconds for a client to send the rest of a body, or to take what is sent
    drain: float = 60.0  # seconds for what runs to end after SIGTERM

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value is not None and value <= 0:
                raise InputError(f"the limit {name} must be above 0, got {value}")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    engine: EngineSettings = field(default_factory=EngineSettings)
    limits: Limits = field(default_factory=Limits)
    name: str = "gesso"  # of the model, in requests and answers
    keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    # Of every request that does not say otherwise, streamed or not: see `Diffusion.settle`.
    settle: int = 1
    also: tuple[str, ...] = ()  # models of the box, each with an engine of its own once it is asked for
    hosts: tuple[str, ...] | None = None  # names a request may call this server by; None: any
