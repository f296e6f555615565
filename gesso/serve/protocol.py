"""Messages between the server and its engine process.

A message is one frame on a pipe: the sizes of its two parts, a JSON object, and a blob that the JSON refers to (the
compiled constraint of a request). The server forwards requests to the engine as it got them from `prepare`, without
decoding them.
"""

import dataclasses
import json
import struct
from dataclasses import dataclass
from typing import Any

# --- to the engine ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constraint:
    """A compiled constraint, by the hash of its source. The blob of the message holds the automaton."""

    key: str
    tools: bool  # it constrains tool calls, whose tags are special tokens


@dataclass(frozen=True)
class Submit:
    id: int
    prompt: list[int]
    options: dict[str, Any]  # of `Gesso.request`
    adapter: str | None = None
    stream: bool = False  # report text as it settles
    drafts: bool = False  # report the canvas after every step
    constraint: Constraint | None = None
    hole: dict[str, Any] | None = None  # arguments of `filling.infill`, or with `span` of `filling.edit`


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
    why: str  # the reason for these choices, in a sentence
    fixed_bytes: int = 0  # expected size of weights and workspace
    budget_bytes: int = 0  # for these and the KV cache


@dataclass(frozen=True)
class Broken:
    """The model cannot be loaded."""

    message: str
    final: bool = True  # another attempt would fail too


@dataclass(frozen=True)
class Heartbeat:
    """Sent once per second from a thread of its own, whatever the engine loop does."""

    step_seconds: float = 0.0  # how long the current step has been running; 0: idle or loading
    requests: int = 0  # that a client waits for
    places: int = 0  # of the engine, taken by them
    cache_bytes: int = 0
    memory_bytes: int = 0  # resident memory of the process; 0: unknown
    device_bytes: int = 0  # GPU memory reserved by the process


@dataclass(frozen=True)
class Started:
    """The request has a place in the batch."""

    id: int


@dataclass(frozen=True)
class Settled:
    """Tokens that follow those settled before and will not change."""

    id: int
    tokens: list[int]


@dataclass(frozen=True)
class Drafted:
    """A canvas after one more step. Lists have one entry per position."""

    id: int
    run: int  # which of the texts written for this request: infill may write several
    canvas: int
    attempt: int
    start: int  # of the canvas, in the new text
    step: int
    steps: int  # upper limit
    tokens: list[int]  # the likeliest
    entropy: list[float]
    states: str  # see `Draft.states`
    reason: str | None  # why this is the last draft of its canvas
    candidates: list[list[tuple[int, float]]]  # the likeliest tokens and their probabilities, on request


@dataclass(frozen=True)
class Logprobs:
    """One entry per token of a committed canvas: its log-probability, and [token, log-probability] of the likeliest."""

    id: int
    entries: list[tuple[float, list[tuple[int, float]]]]


@dataclass(frozen=True)
class Ended:
    id: int
    text: str
    tokens: list[int]
    finish_reason: str
    seed: int
    usage: dict[str, int]


@dataclass(frozen=True)
class Failed:
    id: int
    message: str
    by_input: bool  # the request is at fault, not the engine


ToEngine = Submit | Cancel
FromEngine = Loading | Ready | Broken | Heartbeat | Started | Settled | Drafted | Logprobs | Ended | Failed
Message = ToEngine | FromEngine
_KINDS = {kind.__name__: kind for kind in Message.__args__}

# --- frames -----------------------------------------------------------------------------------------------------------

SIZES = struct.Struct(">II")
FRAME_BYTES = 64 * 2**20  # the largest part of a frame; limits on requests keep real ones far below


class FrameTooLarge(Exception):
    pass


def frame(head: bytes, blob: bytes = b"") -> bytes:
    if max(len(head), len(blob)) > FRAME_BYTES:
        raise FrameTooLarge(f"a message of {len(head) + len(blob):,} bytes exceeds the limit of {FRAME_BYTES:,}")
    return SIZES.pack(len(head), len(blob)) + head + blob


def sizes(prefix: bytes) -> tuple[int, int]:
    """Return the sizes of a frame's two parts from its first eight bytes."""
    head, blob = SIZES.unpack(prefix)
    if max(head, blob) > FRAME_BYTES:
        raise FrameTooLarge(f"a message of {head + blob:,} bytes exceeds the limit of {FRAME_BYTES:,}")
    return head, blob


def encode(message: Message, blob: bytes = b"") -> bytes:
    return frame(_json({"kind": type(message).__name__, **_fields(message)}), blob)


def submit_payload(submit: Submit) -> bytes:
    """Encode all of a Submit but its id, which the server adds (`submit_frame`)."""
    fields = _fields(submit)
    del fields["id"]
    return _json({"kind": "Submit", **fields})


def submit_frame(id: int, payload: bytes, blob: bytes = b"") -> bytes:
    return frame(b'{"id":%d,' % id + payload[1:], blob)


def decode(head: bytes) -> Message:
    fields = json.loads(head)
    kind = _KINDS[fields.pop("kind")]
    if kind is Submit and fields.get("constraint") is not None:
        fields["constraint"] = Constraint(**fields["constraint"])
    message: Message = kind(**fields)
    return message


def _fields(message: Message) -> dict[str, Any]:
    fields = {item.name: getattr(message, item.name) for item in dataclasses.fields(message)}
    if isinstance(message, Submit) and message.constraint is not None:
        fields["constraint"] = dataclasses.asdict(message.constraint)
    return fields


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
