"""Move stored tensors from files to a device.

For a CPU each tensor is read when it is needed, or mapped from its file. For a GPU, threads read ahead into pinned
memory and copy from there: one thread that waits for the disk, for the copy into pinned memory and for the bus in turn
would use a fraction of each. At most AHEAD bytes are on their way at a time.
"""

import mmap
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from gesso.checkpoint.stored import ParameterRecipe, Stored
from gesso.errors import CheckpointError
from gesso.progress import Progress

THREADS = 8
CHUNK = 16 * 2**20  # bytes that a thread reads and copies at once
AHEAD = 2**30  # bytes that are read before the caller asks for them
GAP = 4096  # bytes between tensors that are read along with them rather than skipped
LEAST_MAPPED = 2**20  # bytes; a page or two of a smaller tensor are read faster than they are mapped
LONG_LOAD = 10**9  # bytes from which on a progress bar is shown

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.uint8,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def fetched(
    recipes: Iterable[tuple[str, ParameterRecipe]], device: torch.device, label: str, mapped: Sequence[str] = ()
) -> Iterator[tuple[str, ParameterRecipe, list[Tensor]]]:
    """Yield every recipe with its parts as tensors on the device. A CPU maps those of the formats in `mapped`."""
    recipes = list(recipes)
    waiting: deque[tuple[str, ParameterRecipe, Wait]] = deque()
    ahead = 0
    with (
        _progress(sum(recipe.nbytes for _, recipe in recipes), label) as advance,
        ThreadedReader(device) if device.type == "cuda" else DirectReader() as reader,
    ):
        for position, (name, recipe) in enumerate(recipes):
            chosen = MappedReader() if recipe.format in mapped else reader
            waiting.append((name, recipe, chosen.begin(recipe.parts)))
            ahead += recipe.nbytes
            while waiting and (ahead > reader.ahead or position == len(recipes) - 1):
                first, done, wait = waiting.popleft()
                ahead -= done.nbytes
                yield first, done, wait()
                advance(done.nbytes)


Wait = Callable[[], list[Tensor]]


class TensorReader(Protocol):
    ahead: int  # bytes that may be read before the caller asks for them

    def begin(self, parts: Sequence[Stored]) -> Wait:
        """Begin to read tensors, and return a function that waits for them."""
        ...


def view(raw: Tensor, part: Stored) -> Tensor:
    """Return bytes as the tensor that a file says they are. Blocks of a GGUF stay bytes: [..., rows, bytes per row]."""
    if (dtype := DTYPES.get(part.dtype)) is None:
        return raw.view(*part.shape[:-1], -1)
    if raw.storage_offset() % dtype.itemsize:  # torch rejects a view that is not aligned
        raw = raw.clone()
    return raw.view(dtype).view(part.shape)


# --- read ---------------------------------------------------------------------------------------------------------


def read_into(memory: memoryview, part: Stored, offset: int) -> None:
    """Fill memory with the bytes of a tensor's file from `offset` on; errors name the tensor.

    The file is opened for each read: threads then share no position, and every system can do that.
    """
    try:
        with part.file.open("rb", buffering=0) as file:
            file.seek(offset)
            while memory:
                count = file.readinto(memory)
                if not count:
                    raise CheckpointError(f"weight file {part.file} ends in tensor {part.name}; download it again")
                memory = memory[count:]
    except OSError as error:
        raise CheckpointError(f"weight file {part.file} cannot be read: {error.strerror or error}") from None


class DirectReader:
    """Reads tensors into the memory of this machine."""

    ahead = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, parts: Sequence[Stored]) -> Wait:
        return lambda: [self._read(part) for part in parts]

    def _read(self, part: Stored) -> Tensor:
        raw = torch.empty(part.nbytes, dtype=torch.uint8)
        read_into(raw.numpy().data, part, part.offset)
        return view(raw, part)


class MappedReader(DirectReader):
    """Maps large tensors from their files, so that nothing is read until they are used.

    A mapping is private: if a caller writes to the tensor, the file does not change. Each tensor has a mapping of its
    own, which ends with it.
    """

    def _read(self, part: Stored) -> Tensor:
        if part.nbytes < LEAST_MAPPED:
            return super()._read(part)
        start = part.offset % mmap.ALLOCATIONGRANULARITY
        try:
            with part.file.open("rb") as file:
                mapping = mmap.mmap(
                    file.fileno(), start + part.nbytes, access=mmap.ACCESS_COPY, offset=part.offset - start
                )
        except (OSError, ValueError) as error:  # ValueError: the file ends before the tensor does
            raise CheckpointError(f"weight file {part.file} cannot be mapped: {error}; download it again") from None
        return view(torch.frombuffer(mapping, dtype=torch.uint8)[start:], part)


# --- GPU ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileRun:
    """Tensors that lie next to each other in a file, read as one."""

    file: Path
    offset: int
    nbytes: int
    members: tuple[int, ...]  # indices of the parts


def runs_of(parts: Sequence[Stored]) -> list[FileRun]:
    runs: list[FileRun] = []
    for index in sorted(range(len(parts)), key=lambda i: (str(parts[i].file), parts[i].offset)):
        part = parts[index]
        if runs and runs[-1].file == part.file and 0 <= part.offset - (runs[-1].offset + runs[-1].nbytes) <= GAP:
            last = runs.pop()
            end = part.offset + part.nbytes
            runs.append(FileRun(part.file, last.offset, end - last.offset, (*last.members, index)))
        else:
            runs.append(FileRun(part.file, part.offset, part.nbytes, (index,)))
    return runs


class CopyLane:
    """A pinned buffer and a stream, used by one thread at a time. Without a GPU, for tests, plain memory."""

    def __init__(self, device: torch.device, chunk: int) -> None:
        self.buffer = torch.empty(chunk, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    def copy(self, target: Tensor, ready: Any) -> None:
        """Copy the buffer to the device, and wait until it has arrived.

        `ready` is the event after which earlier kernels no longer use the memory of `target`.
        """
        if self.stream is None:
            target.copy_(self.buffer[: len(target)])
            return
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(ready)
            target.copy_(self.buffer[: len(target)], non_blocking=True)
        self.stream.synchronize()


class ThreadedReader:
    """Copies chunks of files to a GPU by several threads."""

    ahead = AHEAD

    def __init__(self, device: torch.device, chunk: int = CHUNK) -> None:
        self.device = device
        self.chunk = chunk
        self.lanes: SimpleQueue[CopyLane] = SimpleQueue()
        self.pool = ThreadPoolExecutor(THREADS)

    def __enter__(self) -> Self:
        for _ in range(THREADS):
            self.lanes.put(CopyLane(self.device, self.chunk))
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def begin(self, parts: Sequence[Stored]) -> Wait:
        runs = runs_of(parts)
        memory = [torch.empty(run.nbytes, dtype=torch.uint8, device=self.device) for run in runs]
        ready = None
        if self.device.type == "cuda":
            ready = torch.cuda.Event()
            ready.record(torch.cuda.current_stream(self.device))
        tensors: list[Tensor] = [torch.empty(0)] * len(parts)
        chunks: list[Future[None]] = []
        for run, raw in zip(runs, memory, strict=True):
            first = parts[run.members[0]]
            for start in range(0, run.nbytes, self.chunk):
                target = raw[start : start + self.chunk]
                chunks.append(self.pool.submit(self._chunk, first, run.offset + start, target, ready))
            for i in run.members:
                start = parts[i].offset - run.offset
                tensors[i] = raw[start : start + parts[i].nbytes]

        def wait() -> list[Tensor]:
            for chunk in chunks:
                chunk.result()
            return [view(raw, part) for raw, part in zip(tensors, parts, strict=True)]

        return wait

    def _chunk(self, part: Stored, offset: int, target: Tensor, ready: Any) -> None:
        lane = self.lanes.get()
        try:
            read_into(lane.buffer.numpy().data[: len(target)], part, offset)
            lane.copy(target, ready)
        finally:
            self.lanes.put(lane)


# --- progress -----------------------------------------------------------------------------------------------------

_progress_callback: ContextVar[Callable[[int, int], None] | None] = ContextVar("progress_callback", default=None)


@contextmanager
def watched(report: Callable[[int, int], None]) -> Iterator[None]:
    """Call `report` with the bytes read so far and in total while a checkpoint is read in this block."""
    token = _progress_callback.set(report)
    try:
        yield
    finally:
        _progress_callback.reset(token)


@contextmanager
def _progress(total: int, label: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that reports the bytes of a tensor: to the callback, to a terminal, or nowhere."""
    if report := _progress_callback.get():
        done = 0

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            report(done, total)

        yield advance
        return
    visible = total >= LONG_LOAD and sys.stderr.isatty()
    with Progress(in_bytes=True, visible=visible) as progress:
        yield partial(progress.add, label, total)
