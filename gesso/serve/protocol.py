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
    device: str
    dtype: str
    quantize: str | None
    max_batch: int
    max_length: int
    prefill: int
    why: str  # these, in a sentence


@dataclass(frozen=True)
class Broken:
    """The model cannot be loaded, whoever tries."""

    message: str


@dataclass(frozen=True)
class Held:
    """What the engine process has in hand, told now and then, and when it has nothing to do."""

    requests: int  # that somebody waits for
    places: int  # of the engine, taken by them
    cache_bytes: int  # rows keep what they have grown to: at most `max_batch` of them, of `max_length` tokens
    memory_bytes: int  # of the process, resident; 0: the system does not say


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
    """A canvas after one more step, or what the likeliest text of it is."""

    id: int
    run: int  # which of the texts written for this request: a hole may take several
    canvas: int
    attempt: int
    start: int  # of the canvas, in the new text
    step: int
    steps: int  # the most it may take
    tokens: list[int]  # the likeliest, one a position, as all that follows
    entropy: list[float]
    states: str  # see `Draft.states`
    reason: str | None  # why this is the last of its canvas
    candidates: list[list[tuple[int, float]]]  # the likeliest tokens and their probabilities, where asked for


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


Message = Submit | Cancel | Loading | Ready | Broken | Held | Started | Settled | Drafted | Ended | Failed
_KINDS = {kind.__name__: kind for kind in Message.__args__}


def encode(message: Message) -> bytes:
    fields = {item.name: getattr(message, item.name) for item in dataclasses.fields(message)}
    return json.dumps({"kind": type(message).__name__, **fields}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    fields = json.loads(line)
    message: Message = _KINDS[fields.pop("kind")](**fields)
    return message
