"""Messages between the processes of a server: the server, the children that prepare requests, and the engine.

A message is one frame on a pipe or a socket: its size, and the message as MessagePack. Each kind has a tag. Values that
a client may choose freely, such as a JSON schema, travel as JSON text: MessagePack has no integers beyond 64 bits.
"""

import asyncio
import json
import struct
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Self

import msgspec
from msgspec import Struct

from gesso.constraints.answer_check import CHECKED_BY_SERVER, AnswerCheck
from gesso.constraints.schema.options import SchemaOptions
from gesso.constraints.spec import ConstraintSpec
from gesso.engine.request import Request
from gesso.engine.ways import Writing
from gesso.images.image import Image
from gesso.images.tokens import image_of, image_tokens
from gesso.request.info import ModelInfo
from gesso.request.spec import EditSpec, HoleSpec
from gesso.serve.errors import ApiError
from gesso.serve.form import AnswerForm
from gesso.serve.packed_images import Shape
from gesso.serve.remote_images import RemoteImage
from gesso.settings import Diffusion, WriteName, changed

# Codes of the failure of a request.
ENGINE_DIED = "engine_died"  # its engine process ended
INVALID_ANSWER = "invalid_answer"  # no attempt was valid


# --- the state of a model's engine ------------------------------------------------------------------------------------


class Readiness(Struct, frozen=True, kw_only=True):
    """What only an engine knows, and requests depend on. Before it is ready, the server assumes the most it can be."""

    max_length: int
    write: WriteName  # of requests that leave it open
    canvas_length: int | None  # of these; None: the checkpoint's
    vision: bool


class ModelState(Struct, frozen=True, kw_only=True):
    """A model as a child that prepares a request must know it."""

    readiness: Readiness
    adapters: list[str]  # names that requests may give


# --- to a child that prepares requests --------------------------------------------------------------------------------


class Prepare(Struct, frozen=True, tag=True, kw_only=True):
    """Prepare the request of an endpoint. Answered by Reply, Prepared, RequestRejected, NeedsImages or NeedsItems."""

    endpoint: str
    body: memoryview
    models: dict[str, ModelState]
    fetched: dict[str, memoryview] | None = None  # contents by URL; None: no image has been fetched yet


class Compile(Struct, frozen=True, tag=True, kw_only=True):
    """Compile a constraint. Answered by Compiled or RequestRejected."""

    model: str
    source: bytes


class FetchImages(Struct, frozen=True, tag=True):
    """Fetch images of other servers. Answered by FetchedImages or RequestRejected."""

    images: list[RemoteImage]


class CheckText(Struct, frozen=True, tag=True, kw_only=True):
    """Check a finished answer. Answered by Checked."""

    model: str
    check: bytes  # see `AnswerForm.check`
    text: str
    tokens: list[int]


class ChildTask(Struct, frozen=True, kw_only=True):
    """Work of a child within limits."""

    work: Prepare | Compile | FetchImages | CheckText
    seconds: int  # of CPU time
    memory: int  # bytes in addition to those of the process that forked it


class StoredItems(Struct, frozen=True):
    """Stored lists of items, one per line: the answer to NeedsItems."""

    lines: bytes


# --- from a child -----------------------------------------------------------------------------------------------------


class Reply(Struct, frozen=True, tag=True):
    """A whole answer, as JSON."""

    content: bytes


class ConstraintSource(Struct, frozen=True, kw_only=True):
    """A constraint that is not compiled yet, as JSON. The key identifies it and the model."""

    key: str
    model: str
    source: bytes
    has_tags: bool  # of tool calls or thoughts, which are special tokens


class PreparedPrompt(Struct, frozen=True, kw_only=True):
    """One prompt of a request: what the engine does for each choice, encoded once for all of them."""

    prompt_tokens: int
    max_new_tokens: int
    seed: int  # of the first choice
    planned: bool  # whether a plan runs several engine requests for a choice
    work: bytes  # an `EngineWork`


class Prepared(Struct, frozen=True, tag=True, kw_only=True):
    """A request that the engine can run."""

    form: AnswerForm
    prompts: list[PreparedPrompt]
    choices: int  # of each prompt; choice i has the seed + i
    readiness: Readiness  # with which it was prepared
    drafts: bool = False  # report the canvas after every step
    constraint: ConstraintSource | None = None
    shapes: list[Shape] = []  # of the images of all prompts, see `gesso.serve.packed_images`
    images: memoryview = memoryview(b"")


class RequestRejected(Struct, frozen=True, tag=True, kw_only=True):
    status: int
    message: bytes  # may quote half a surrogate pair
    param: bytes | None = None
    code: str | None = None

    @classmethod
    def of(cls, error: ApiError) -> Self:
        param = None if error.param is None else _to_bytes(error.param)
        return cls(status=error.status, message=_to_bytes(error.message), param=param, code=error.code)

    @property
    def error(self) -> ApiError:
        param = None if self.param is None else _from_bytes(self.param)
        return ApiError(self.status, _from_bytes(self.message), param=param, code=self.code)


class NeedsImages(Struct, frozen=True, tag=True):
    """The request can be prepared only with images of other servers."""

    images: list[RemoteImage]


class NeedsItems(Struct, frozen=True, tag=True):
    """The request continues a stored conversation. The child waits for StoredItems."""

    previous: str | None
    others: list[str]  # responses whose output items it refers to


class FetchedImages(Struct, frozen=True, tag=True):
    contents: list[memoryview]  # in the order of the images


class Compiled(Struct, frozen=True, tag=True):
    """A compiled constraint, and warnings about its schema."""

    term: bytes
    warnings: list[str]


class Checked(Struct, frozen=True, tag=True):
    problem: str | None  # what is wrong with the answer


FromChild = Reply | Prepared | RequestRejected | NeedsImages | NeedsItems | FetchedImages | Compiled | Checked


# --- what the engine does ---------------------------------------------------------------------------------------------


class WireRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `Request` without what the engine has itself: its constants, the compiled constraint and images."""

    prompt: list[int]  # -1 - i stands for all soft tokens of image i
    max_new_tokens: int
    settings: dict[str, bool | int | float | str | None]  # that differ from the defaults
    eos: list[int] = []
    stop: list[str] = []
    pins: dict[int, int] = {}
    free_first: bool = False
    top_logprobs: int | None = None
    draft_logprobs: int | None = None
    compared: list[list[int]] = []
    adapter: str | None = None
    is_checked_later: bool = False  # the server checks the answer

    @classmethod
    def of(cls, request: Request, images: Sequence[Image]) -> Self:
        """`images`: different ones, in the order in which they travel."""
        return cls(
            prompt=_with_indexes(request, images),
            max_new_tokens=request.max_new_tokens,
            settings=changed(request.diffusion),
            eos=sorted(request.eos),
            stop=list(request.stop),
            pins=dict(request.pins),
            free_first=request.free_first,
            top_logprobs=request.top_logprobs,
            draft_logprobs=request.draft_logprobs,
            compared=[list(text) for text in request.compared],
            adapter=request.adapter,
            is_checked_later=request.validate is not None,
        )

    def request(self, info: ModelInfo, seed: int, images: tuple[Image, ...]) -> Request:
        """Return the request for the engine. It was checked when it was built, up to its constraint."""
        return Request(
            prompt=_with_soft_tokens(self.prompt, images),
            images=images,
            max_new_tokens=self.max_new_tokens,
            diffusion=Diffusion(**self.settings),  # type: ignore[arg-type]
            seed=seed,
            eos=frozenset(self.eos),
            stop=tuple(self.stop),
            pins=self.pins,
            validate=CHECKED_BY_SERVER if self.is_checked_later else None,
            free_first=self.free_first,
            never_first=info.never_first,
            byte_tokens=info.tokenizer.byte_ids,
            top_logprobs=self.top_logprobs,
            draft_logprobs=self.draft_logprobs,
            compared=tuple(map(tuple, self.compared)),
            adapter=self.adapter,
        )


class GuideKey(Struct, frozen=True):
    """A compiled constraint that travels with a request, identified by the hash of its source."""

    key: str
    has_tags: bool  # of tool calls or thoughts, which are special tokens


class WriteText(Struct, frozen=True, tag=True, kw_only=True):
    request: WireRequest
    guide: GuideKey | None = None
    seconds: float | None = None  # of writing, after which the text ends as soon as it has a whole line


class CompareTexts(Struct, frozen=True, tag=True):
    request: WireRequest


class EchoPrompt(Struct, frozen=True, tag=True, kw_only=True):
    """Report the log-probabilities of a prompt, and of the most probable token after it if one is added."""

    prompt: list[int]
    top_logprobs: int
    new_tokens: int
    adapter: str | None


class FillHole(Struct, frozen=True, tag=True):
    base: WireRequest
    hole: HoleSpec


class EditSpan(Struct, frozen=True, tag=True):
    base: WireRequest
    change: EditSpec


EngineWork = WriteText | CompareTexts | EchoPrompt | FillHole | EditSpan
_to_work = msgspec.msgpack.Decoder(EngineWork)


def work_to_bytes(work: EngineWork) -> bytes:
    return _encoder.encode(work)


def work_of(data: bytes) -> EngineWork:
    return _to_work.decode(data)


# --- to the engine ----------------------------------------------------------------------------------------------------


class Submit(Struct, frozen=True, tag=True, kw_only=True):
    """Write one answer. Its events end with Ended or RequestFailed."""

    id: int
    seed: int
    attempts: int = 1  # at a valid answer
    stream: bool = False  # report text as it settles
    drafts: bool = False  # report the canvas after every step
    shapes: list[Shape] = []  # of the images, see `gesso.serve.packed_images`
    images: memoryview = memoryview(b"")
    term: memoryview = memoryview(b"")  # the compiled constraint
    work: bytes


class AnswerChecked(Struct, frozen=True, tag=True):
    """The server's answer to CheckAnswer."""

    id: int
    problem: str | None


class Cancel(Struct, frozen=True, tag=True):
    id: int


class LoadAdapter(Struct, frozen=True, tag=True):
    """Answered by AdapterLoaded or AdapterFailed. Requests may name it after the former."""

    name: str
    directory: bytes  # a path may not be UTF-8


class UnloadAdapter(Struct, frozen=True, tag=True):
    """Sent after the last request with this adapter has ended."""

    name: str


# --- from the engine --------------------------------------------------------------------------------------------------


class Loading(Struct, frozen=True, tag=True):
    share: float  # of the weights, 0 to 1


class Ready(Struct, frozen=True, tag=True, kw_only=True):
    device: str
    dtype: str
    quantize: str | None
    max_batch: int
    max_length: int
    prefill: int
    why: str  # the reason for these values, as a sentence
    fixed_bytes: int = 0  # expected size of weights and workspace
    budget_bytes: int = 0  # memory for weights, workspace and KV cache
    writing: Writing = Writing()  # how requests are written that leave it open
    vision: bool = False  # whether the model sees images

    @property
    def readiness(self) -> Readiness:
        return Readiness(
            max_length=self.max_length,
            write=self.writing.write,
            canvas_length=self.writing.canvas_length,
            vision=self.vision,
        )

    @property
    def described(self) -> dict[str, Any]:
        """The fields for /ready and the log."""
        fields = msgspec.structs.asdict(self)
        del fields["writing"]
        return {**fields, "write": self.writing.summary}


class Broken(Struct, frozen=True, tag=True):
    """The model cannot be loaded."""

    message: str
    final: bool = True  # another attempt would fail as well


class Heartbeat(Struct, frozen=True, tag=True, kw_only=True):
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


class Started(Struct, frozen=True, tag=True):
    """The request has entered the batch."""

    id: int


class Settled(Struct, frozen=True, tag=True):
    """Tokens that will not change, and follow those reported before."""

    id: int
    tokens: list[int]


class Drafted(Struct, frozen=True, tag=True, kw_only=True):
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


class Logprobs(Struct, frozen=True, tag=True):
    """Per token of a committed canvas: its log-probability, and [token, log-probability] of the most likely tokens.

    The first token of an echoed prompt has none.
    """

    id: int
    entries: list[tuple[float | None, list[tuple[int, float]]]]


class CheckAnswer(Struct, frozen=True, tag=True):
    """A finished text whose check the engine awaits: a schema decides how long it takes. Answered by AnswerChecked."""

    id: int
    text: str
    tokens: list[int]
    usage: dict[str, int]


class Ended(Struct, frozen=True, tag=True, kw_only=True):
    id: int
    text: str
    tokens: list[int]
    finish_reason: str
    seed: int
    usage: dict[str, int]
    stop: str | None = None  # the stop string that ended the text
    scores: list[float] = []  # log-probabilities of the choices of a decision


class RequestFailed(Struct, frozen=True, tag=True, kw_only=True):
    id: int
    message: str
    by_input: bool  # whether the request is at fault, not the engine
    code: str | None = None  # of the error that the client receives


class AdapterLoaded(Struct, frozen=True, tag=True):
    name: str


class AdapterFailed(Struct, frozen=True, tag=True):
    name: str
    message: str
    by_input: bool  # whether the adapter is at fault, not the engine


ToEngine = Submit | AnswerChecked | Cancel | LoadAdapter | UnloadAdapter
OfRequest = Started | Settled | Drafted | Logprobs | CheckAnswer | Ended | RequestFailed
FromEngine = OfRequest | Loading | Ready | Broken | Heartbeat | AdapterLoaded | AdapterFailed
Message = ToEngine | FromEngine | FromChild | ChildTask | StoredItems

_encoder = msgspec.msgpack.Encoder()
to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)
to_child = msgspec.msgpack.Decoder(ChildTask)
from_child = msgspec.msgpack.Decoder(FromChild)
to_items = msgspec.msgpack.Decoder(StoredItems)

# --- frames -----------------------------------------------------------------------------------------------------------

SIZE = struct.Struct(">I")
FRAME_BYTES = 512 * 2**20  # limit for a frame; the limits on requests keep frames far below it


class FrameTooLarge(Exception):
    pass


def frame(message: Message) -> bytearray:
    """Return a message with its size before it."""
    buffer = bytearray(SIZE.size)
    _encoder.encode_into(message, buffer, SIZE.size)
    size = len(buffer) - SIZE.size
    _check_size(size)
    SIZE.pack_into(buffer, 0, size)
    return buffer


def size_of(prefix: bytes) -> int:
    """Return the size of a message from the bytes before it."""
    (size,) = SIZE.unpack(prefix)
    _check_size(size)
    return int(size)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Read a message that is not decoded yet. Raise IncompleteReadError if the stream ends."""
    return await reader.readexactly(size_of(await reader.readexactly(SIZE.size)))


def _check_size(size: int) -> None:
    if size > FRAME_BYTES:
        raise FrameTooLarge(f"a message of {size:,} bytes exceeds the limit of {FRAME_BYTES:,}")


# --- values as JSON ---------------------------------------------------------------------------------------------------


def constraint_to_json(spec: ConstraintSpec) -> bytes:
    return json.dumps(asdict(spec)).encode()


def constraint_of(source: bytes) -> ConstraintSpec:
    fields = json.loads(source)
    options = fields.pop("schema_options")
    return ConstraintSpec(**fields, schema_options=None if options is None else SchemaOptions(**options))


def check_to_json(check: AnswerCheck | None) -> bytes:
    return b"" if check is None else json.dumps(asdict(check)).encode()


def check_of(source: bytes) -> AnswerCheck:
    return AnswerCheck(**json.loads(source))


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _from_bytes(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


# --- images in a prompt -----------------------------------------------------------------------------------------------


def _with_indexes(request: Request, images: Sequence[Image]) -> list[int]:
    """Return the prompt with one negative number in place of all soft tokens of an image."""
    index_of = {image.digest: index for index, image in enumerate(images)}
    prompt: list[int] = []
    end = 0
    for block in request.blocks:
        digest, _ = image_of(request.prompt[block.start])
        prompt += request.prompt[end : block.start]
        prompt.append(-1 - index_of[digest])
        end = block.stop
    prompt += request.prompt[end:]
    return prompt


def _with_soft_tokens(prompt: Sequence[int], images: Sequence[Image]) -> tuple[int, ...]:
    if not images:
        return tuple(prompt)
    tokens: list[int] = []
    for token in prompt:
        if token < 0:
            image = images[-1 - token]
            tokens += image_tokens(image.digest, image.tokens)
        else:
            tokens.append(token)
    return tuple(tokens)
