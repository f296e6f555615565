"""Messages between the server and its engine process.

A message is one frame on a pipe: the sizes of its two parts, a JSON object, and a blob that belongs to it (the prepared
images and the compiled constraint of a request). The server forwards the payloads that `prepare` encoded to the engine
without decoding them.
"""

import asyncio
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

ENGINE_DIED = "engine_died"  # code of the failure of a request whose engine process ended

# --- to the engine ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constraint:
    """A compiled constraint, identified by the hash of its source. The message's blob ends with the automaton."""

    key: str
    tools: bool  # whether it has tags of tool calls or thoughts, which are special tokens
    optional: bool = False  # whether the engine may leave it out, see `Gesso.request`


@dataclass(frozen=True)
class Submit:
    id: int
    prompt: list[int]
    options: dict[str, Any]  # of `Gesso.request`
    adapter: str | None = None
    stream: bool = False  # report text as it settles
    drafts: bool = False  # report the canvas after every step
    constraint: Constraint | None = None
    hole: dict[str, Any] | None = None  # arguments of `infill`, or with `span` of `edit`
    choices: Sequence[Sequence[int]] = field(default_factory=list)  # texts to compare after the prompt
    ends: bool = False  # whether the choices are whole answers
    echo: tuple[int, int] | None = None  # score the prompt: number of top log-probabilities, and of tokens to add
    images: Sequence[Sequence[int]] = field(default_factory=list)  # shapes; the blob begins with the pixels
    attempt: int = 0  # at a valid answer; each has its own seed
    seconds: float | None = None  # of writing, after which the text ends as soon as it has a whole line

    @property
    def planned(self) -> bool:
        """Whether the answer is more than the events of one request for text."""
        return self.hole is not None or bool(self.choices) or self.echo is not None


@dataclass(frozen=True)
class Cancel:
    id: int


@dataclass(frozen=True)
class LoadAdapter:
    """Answered by AdapterLoaded or AdapterFailed. Requests may name it after the former."""

    name: str
    directory: str


@dataclass(frozen=True)
class UnloadAdapter:
    """Sent after the last request with this adapter has ended."""

    name: str


# --- from the engine --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loading:
    share: float  # of the weights, 0 to 1


@dataclass(frozen=True)
class Ready:
    device: str
    dtype: str
    quantize: str | None
    max_batch: int
    max_length: int
    prefill: int
    why: str  # the reason for these values, as a sentence
    fixed_bytes: int = 0  # expected size of weights and workspace
    budget_bytes: int = 0  # memory for weights, workspace and KV cache
    write: str = ""  # how requests are written that leave it open, and the reason
    vision: bool = False  # whether the model sees images


@dataclass(frozen=True)
class Broken:
    """The model cannot be loaded."""

    message: str
    final: bool = True  # another attempt would fail as well


@dataclass(frozen=True)
class Heartbeat:
    """Sent once per second from a separate thread, even while the engine loop is blocked."""

    step_seconds: float = 0.0  # duration of the current step so far; 0 if idle or loading
    requests: int = 0  # of clients
    places: int = 0  # engine requests for these; infill takes several
    cache_bytes: int = 0
    memory_bytes: int = 0  # resident memory of the process; 0 if unknown
    device_bytes: int = 0  # GPU memory reserved by the process
    captures: int = 0  # passes captured so far
    compilations: int = 0  # kernels compiled so far
    kernel_loads: int = 0  # compiled kernels read from disk so far
    images_read: int = 0  # by the vision tower so far
    images_kept: int = 0  # uses of images so far that the tower had read before


@dataclass(frozen=True)
class Started:
    """The request has entered the batch."""

    id: int


@dataclass(frozen=True)
class Settled:
    """Tokens that will not change, and follow those reported before."""

    id: int
    tokens: list[int]


@dataclass(frozen=True)
class Drafted:
    """A draft: the canvas after a denoising step. Lists have one entry per position."""

    id: int
    run: int  # index of the text within this request; infill may generate several
    canvas: int
    attempt: int
    start: int  # of the canvas, in the new text
    step: int
    steps: int  # upper limit
    tokens: list[int]  # most likely ones
    entropy: list[float]
    states: str  # see `Draft.states`
    reason: str | None  # why this is the last draft of its canvas
    candidates: list[list[tuple[int, float]]]  # most likely tokens and their probabilities, on request


@dataclass(frozen=True)
class Logprobs:
    """Per token of a committed canvas: its log-probability, and [token, log-probability] of the most likely tokens.

    The first token of an echoed prompt has none.
    """

    id: int
    entries: list[tuple[float | None, list[tuple[int, float]]]]


@dataclass(frozen=True)
class Ended:
    id: int
    text: str
    tokens: list[int]
    finish_reason: str
    seed: int
    usage: dict[str, int]
    stop: str | None = None  # the stop string that ended the text
    constrained: bool = False  # whether a constraint was enforced
    scores: Sequence[float] = field(default_factory=list)  # log-probabilities of the choices of a decision


@dataclass(frozen=True)
class Failed:
    id: int
    message: str
    by_input: bool  # whether the request is at fault, not the engine
    code: str | None = None  # of the error that the client receives


@dataclass(frozen=True)
class AdapterLoaded:
    name: str


@dataclass(frozen=True)
class AdapterFailed:
    name: str
    message: str
    by_input: bool  # whether the adapter is at fault, not the engine


ToEngine = Submit | Cancel | LoadAdapter | UnloadAdapter
OfRequest = Started | Settled | Drafted | Logprobs | Ended | Failed
Message = ToEngine | OfRequest | Loading | Ready | Broken | Heartbeat | AdapterLoaded | AdapterFailed
_KINDS = {kind.__name__: kind for kind in Message.__args__}

# --- frames -----------------------------------------------------------------------------------------------------------

SIZES = struct.Struct(">II")
FRAME_BYTES = 256 * 2**20  # limit for each part of a frame; the limits on requests keep frames far below it


class FrameTooLarge(Exception):
    pass


def frame(head: bytes, blob: bytes = b"") -> bytes:
    _check_sizes(len(head), len(blob))
    return SIZES.pack(len(head), len(blob)) + head + blob


def sizes(prefix: bytes) -> tuple[int, int]:
    """Return the sizes of a frame's two parts from its first eight bytes."""
    head, blob = SIZES.unpack(prefix)
    _check_sizes(head, blob)
    return head, blob


async def read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read the two parts of a frame. Raise IncompleteReadError if the stream ends."""
    head, blob = sizes(await reader.readexactly(SIZES.size))
    return await reader.readexactly(head), await reader.readexactly(blob)


def _check_sizes(head: int, blob: int) -> None:
    if max(head, blob) > FRAME_BYTES:
        raise FrameTooLarge(f"a message of {head + blob:,} bytes exceeds the limit of {FRAME_BYTES:,}")


def encode(message: Message, blob: bytes = b"") -> bytes:
    return frame(_json({"kind": type(message).__name__, **vars(message)}), blob)


def submit_payload(submit: Submit) -> bytes:
    """Encode a Submit without its id and its attempt, which the server adds (`submit_frame`)."""
    fields = {name: value for name, value in vars(submit).items() if name not in ("id", "attempt")}
    return _json({"kind": "Submit", **fields})


def submit_frame(id: int, payload: bytes, blob: bytes = b"", attempt: int = 0) -> bytes:
    return frame(b'{"id":%d,"attempt":%d,' % (id, attempt) + payload[1:], blob)


def decode(head: bytes) -> Message:
    fields = json.loads(head)
    kind = _KINDS[fields.pop("kind")]
    if kind is Submit and fields.get("constraint") is not None:
        fields["constraint"] = Constraint(**fields["constraint"])
    message: Message = kind(**fields)
    return message


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), default=vars).encode()  # `vars`: a Constraint as an object
