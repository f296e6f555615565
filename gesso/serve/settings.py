"""Settings of a server."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from gesso.errors import InputError

QUEUE_SHARE = 4  # one of several clients may have a fourth of `Limits.queue` waiting


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What the engine process loads, and how. None: `gesso.serve.auto` chooses by the available memory."""

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
    """Bounds on what one client, or all clients together, can ask for. docs/security.md explains the defaults."""

    queue: int = 256  # requests that wait, to be read or to be answered; the next one gets 429
    request_tokens: int | None = None  # prompt and answer of one request; None: the context
    total_tokens: int | None = None  # of all requests that wait or run; None: no limit
    choices: int = 16  # `n` of one request
    body_bytes: int = 8 * 2**20
    timeout: float = 600.0  # seconds for an answer, waiting included
    head_timeout: float = 10.0  # seconds for a client to send a complete request head
    io_timeout: float = 30.0  # seconds for a client to send the rest of a body, or to take what is sent
    drain: float = 60.0  # seconds for running requests to finish after SIGTERM
    connections: int = 4096  # open at once; fewer where the system allows fewer open files
    prepare_seconds: int = 5  # CPU time for reading, checking and tokenizing one request
    compile_seconds: int = 10  # CPU time for compiling one constraint
    prepare_bytes: int = 2**30  # memory for either
    heartbeat: float = 30.0  # seconds without a sign of life after which the engine is restarted
    step_timeout: float = 300.0  # seconds for one step of the engine, compiling its kernels included

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value is not None and value <= 0:
                raise InputError(f"limit {name} must be above 0, got {value}")


def places_of_plan(max_batch: int, device: str) -> int:
    """Return how many places in the engine a request that takes several, such as infill, may have at once.

    A fourth of them; on a CPU one, because two at once take as long as one after the other, and the second one can use
    what the first has read.
    """
    return max(1, max_batch // 4) if device.startswith("cuda") else 1


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    engine: EngineSettings = field(default_factory=EngineSettings)
    limits: Limits = field(default_factory=Limits)
    name: str = "gesso"  # of the model, in requests and answers
    keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    settle: int = 1  # default of `Diffusion.settle` for requests that do not set it
    also: tuple[str, ...] = ()  # bundled models, each with its own engine from its first request on
    hosts: tuple[str, ...] | None = None  # accepted values of the Host header; None: any

    @property
    def shared(self) -> bool:
        """Whether more than one client can be told apart: by keys, or by addresses that may connect."""
        return len(self.keys) > 1 or (not self.keys and self.hosts is None)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(replace(self, keys=()))  # keys stay in the process that checks them

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        engine, limits = EngineSettings(**fields["engine"]), Limits(**fields["limits"])
        lists = {name: tuple(fields[name]) for name in ("cors_origins", "also")}
        return cls(**{**fields, **lists, "engine": engine, "limits": limits, "keys": ()})
