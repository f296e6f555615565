"""What a server is told when it starts."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from gesso.errors import InputError


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What the engine process loads, and how."""

    model: str | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)  # directory by name
    device: str | None = None
    dtype: str | None = None
    quantize: str | None = None
    max_batch: int = 8
    max_length: int | None = None
    prefill: int = 2048


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
    hosts: tuple[str, ...] | None = None  # names a request may call this server by; None: any
