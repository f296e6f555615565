"""What the server and its engine process say to each other: one JSON object a line, through two pipes."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

# --- to the engine ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submit:
    id: int
    prompt: list[int]
    options: dict[str, Any]  # of `Gesso.request`
    adapter: str | None = None
    stream: bool = False  # tell what settles, as it settles
    drafts: bool = False  # and every canvas, after every step
    constraint: dict[str, Any] | None = None  # of `Guides.guide`, or with `tools` of `Guides.calls`
    hole: dict[str, Any] | None = None  # a hole to fill, of `filling.infill`, or with `span` of `filling.edit`


@dataclass(frozen=True)
class Cancel:
    id: int


# --- from the engine --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loading:
    share: float  # of the weights


@dataclass(frozen=True)
class Ready:
    max_length: int
    device: str
    dtype: str


@dataclass(frozen=True)
class Broken:
    """The model cannot be loaded, whoever tries."""

    message: str


@dataclass(frozen=True)
class Started:
    """The request has its place in the batch; `waiting` ones have not."""

    id: int


@dataclass(frozen=True)
class Settled:
    """Tokens that follow those settled before, and will not change."""

    id: int
    tokens: list[int]


@dataclass(frozen=True)
class Drafted:
    id: int
    canvas: int
    step: int
    text: str
    entropy: list[float]


@dataclass(frozen=True)
class Ended:
    id: int
    text: str
    tokens: list[int]
    finish_reason: str
    seed: int
    usage: dict[str, int]
    # One a token: the logarithm of its probability, and [token, logarithm] of the likeliest.
    likely: list[tuple[float, list[tuple[int, float]]]] = field(default_factory=list)


@dataclass(frozen=True)
class Failed:
    id: int
    message: str
    by_input: bool  # the request is at fault, not the engine


Message = Submit | Cancel | Loading | Ready | Broken | Started | Settled | Drafted | Ended | Failed
_KINDS = {kind.__name__: kind for kind in Message.__args__}


def encode(message: Message) -> bytes:
    fields = {item.name: getattr(message, item.name) for item in dataclasses.fields(message)}
    return json.dumps({"kind": type(message).__name__, **fields}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    fields = json.loads(line)
    message: Message = _KINDS[fields.pop("kind")](**fields)
    return message
