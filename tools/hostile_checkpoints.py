"""Open hostile checkpoints with `gesso info` and `gesso.load`, and report how that ends.

    python -m tools.hostile_checkpoints

Headers of safetensors and GGUF files, links, pipes and devices. Each is opened in a child process of its own, which
must end with an error of one line, within the limits on time and memory. Linux only.
"""

import io
import json
import os
import resource
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import gesso
from gesso.checkpoint.safetensors import SINGLE
from gesso.cli.main import main as command_line
from gesso.errors import GessoError
from tests.checkpoint.gguf.test_file import HOSTILE as GGUF_HEADERS
from tests.tiny import make

SECONDS, MEMORY = 10, 1 << 30  # of processor time, and bytes more than before, at which a case is ended
INDEX = "model.safetensors.index.json"

Change = Callable[[Path], None]


def safetensors(header: object, data: int = 64, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


def tensor(shape: object, offsets: object, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


SAFETENSORS = {
    "empty": b"",
    "shorter than its length": b"\x01\x02",
    "length of 2^63": safetensors({}, length=2**63),
    "length of 100 MB": safetensors({}, length=100_000_000),
    "length past the end": safetensors({}, length=65),
    "length of 0": safetensors(b""),
    "not JSON": safetensors(b"{"),
    "not UTF-8": safetensors(b'{"\xff": 1}'),
    "a list": safetensors([]),
    "deeply nested": safetensors(b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a long integer": safetensors(b'{"a": {"dtype": "F32", "data_offsets": [0, 64], "shape": [' + b"9" * 5000 + b"]}}"),
    "a shape that overflows": safetensors({"a": tensor([2**62, 2**62], [0, 64])}),
    "a negative shape": safetensors({"a": tensor([-4, -4], [0, 64])}),
    "a shape of other size": safetensors({"a": tensor([4], [0, 64])}),
    "offsets past the end": safetensors({"a": tensor([2**40], [0, 2**42])}),
    "offsets in reverse": safetensors({"a": tensor([16], [64, 0])}),
    "offsets that overlap": safetensors({"a": tensor([16], [0, 64]), "b": tensor([16], [0, 64])}),
    "an unknown dtype": safetensors({"a": tensor([16], [0, 64], "F99")}),
    "no tensors": safetensors({}, data=0),
    "other tensors": safetensors({"a": tensor([16], [0, 64])}),
    "100,000 tensors": safetensors({f"t{number}": tensor([0], [0, 0]) for number in range(100_000)}, data=0),
    "a pickle": b"\x80\x04cposix\nsystem\n(X\x04\x00\x00\x00exittR.",
}


def _replace(name: str, place: Callable[[Path], object]) -> Change:
    def change(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        place(directory / name)

    return change


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.getcwd()
        os.chdir(path.parent)  # the path of a socket is short
        listener.bind(path.name)
        os.chdir(before)


LINKS: dict[str, Change] = {
    **{f"{name} is a pipe": _replace(name, os.mkfifo) for name in ("config.json", "tokenizer.json", SINGLE, INDEX)},
    **{
        f"{name} is a link to {target}": _replace(name, lambda path, target=target: path.symlink_to(target))  # type: ignore[misc]
        for name in ("config.json", "tokenizer.json", SINGLE)
        for target in ("/dev/zero", "/dev/random", "/etc/passwd", "nowhere", ".", "/proc/self/mem")
    },
    f"{SINGLE} is a link to itself": _replace(SINGLE, lambda path: path.symlink_to(path.name)),
    f"{SINGLE} is a directory": _replace(SINGLE, Path.mkdir),
    f"{SINGLE} is a socket": _replace(SINGLE, _socket),
    "the index names /etc/passwd": lambda directory: _index(directory, "/etc/passwd"),
    "the index names a parent": lambda directory: _index(directory, "../model.safetensors"),
    "the index names a link": lambda directory: (
        _index(directory, "part.safetensors"), (directory / "part.safetensors").symlink_to("/dev/zero")
    )[0],
}  # fmt: skip


def _index(directory: Path, name: str) -> None:
    names = ["model.decoder.norm.weight", "model.decoder.embed_tokens.weight"]
    (directory / SINGLE).unlink()
    (directory / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, name)}))


def cases(model: Path, scratch: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield kinds, names and paths of checkpoints. Each is written when it is reached."""
    for name, data in SAFETENSORS.items():
        yield "safetensors", name, _changed(model, scratch, lambda to, data=data: (to / SINGLE).write_bytes(data))  # type: ignore[misc]
    for name, change in LINKS.items():
        yield "links and pipes", name, _changed(model, scratch, change)
    for name, (data, _) in GGUF_HEADERS.items():
        path = scratch / "model.gguf"
        path.write_bytes(data)
        yield "GGUF", name, path


def _changed(model: Path, scratch: Path, change: Callable[[Path], object]) -> Path:
    directory = scratch / "model"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(model, directory)
    change(directory)
    return directory


def end_of(path: Path) -> tuple[str, str, float, float]:
    """Open a checkpoint in a child process. Return the end, the message, seconds, and MB more than before."""
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        signal.alarm(10 * SECONDS)
        os.write(writer, json.dumps(_opened(path)).encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        answer = answers.read()
    _, status, used = os.wait4(child, 0)
    end, message = json.loads(answer) if answer else (f"ended with status {status}", "")
    memory = max(used.ru_maxrss * 1024 - before, 0)
    if memory > MEMORY:
        end = "memory"
    return end, message, used.ru_utime + used.ru_stime, memory / 1e6


def _opened(path: Path) -> tuple[str, str]:
    errors = io.StringIO()
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(errors):
            command_line(["info", str(path)])
    except SystemExit:
        pass
    except BaseException as error:
        return f"info: {type(error).__name__}", str(error)[:300]
    if "Traceback" in errors.getvalue():
        return "info: traceback", errors.getvalue()[-300:]
    try:
        gesso.load(path, device="cpu")
    except GessoError as error:
        return "refused", str(error)
    except BaseException as error:
        return f"load: {type(error).__name__}", str(error)[:300]
    return "loaded", ""


def main() -> int:
    ends: dict[str, Counter[str]] = {}
    slowest, largest = 0.0, 0.0
    with tempfile.TemporaryDirectory() as scratch:
        model = make(Path(scratch) / "source")
        gesso.load(model, device="cpu")  # so that children share the imports, which take longer than a case
        for kind, name, path in cases(model, Path(scratch)):
            end, message, seconds, memory = end_of(path)
            ends.setdefault(kind, Counter())[end] += 1
            slowest, largest = max(slowest, seconds), max(largest, memory)
            if end != "refused":
                print(f"not refused: {kind}, {name}: {end} {message!r}", flush=True)
    for kind, counts in ends.items():
        print(f"{kind}: {counts.total()} cases, {dict(counts)}")
    print(f"slowest {slowest:.2f} s of processor time, most memory {largest:.0f} MB")
    return 0 if all(set(counts) == {"refused"} for counts in ends.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
