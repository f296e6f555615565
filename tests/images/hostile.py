"""Files that attack a reader of pictures.

`python -m tests.images.hostile` reads each in a process of its own and prints as JSON how that ended and what it cost.
With `--server`, it sends each to a server of the bundled model that accepts images.
"""

import json
import os
import resource
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from gesso.errors import InputError
from gesso.images.read import MAX_BYTES, open_picture
from tests.images.files import drawing, encoded


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, *more: bytes) -> bytes:
    """Return a PNG file of black pixels, one bit each."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(bytes(1 + (width + 7) // 8)) for _ in range(height)) + packer.flush()
    parts = (chunk(b"IHDR", header), *more, chunk(b"IDAT", rows), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def jpeg(width: int, height: int) -> bytes:
    """Return a small JPEG file that claims a size."""
    data = encoded(drawing(8, 8), "JPEG")
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def tiff(**tags: int) -> bytes:
    """Return a gray TIFF file with these tags."""
    numbers = {"width": 256, "height": 257, "strip_bytes": 279, "tile_width": 322, "tile_height": 323}
    fields = {256: 8, 257: 8, 258: 8, 259: 5, 262: 1, 277: 1}
    fields |= {324: 8, 325: 64} if "tile_width" in tags else {273: 8, 278: 8, 279: 64}
    fields |= {numbers[name]: tag for name, tag in tags.items()}
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, fields[tag]) for tag in sorted(fields))
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(fields)) + directory + bytes(68)


def webp(width: int, height: int) -> bytes:
    """Return an animated WebP file with a small frame on a large canvas."""

    def part(name: bytes, data: bytes) -> bytes:
        return name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)

    def three(*numbers: int) -> bytes:
        return b"".join(number.to_bytes(3, "little") for number in numbers)

    picture = encoded(drawing(8, 8), "WEBP", lossless=True)[12:]
    frame = part(b"ANMF", three(0, 0, 7, 7, 100) + b"\0" + picture)
    body = b"WEBP" + part(b"VP8X", b"\2\0\0\0" + three(width - 1, height - 1)) + part(b"ANIM", bytes(6)) + frame
    return b"RIFF" + struct.pack("<I", len(body)) + body


def gif(width: int, height: int, frame: tuple[int, int]) -> bytes:
    data = bytearray(encoded(Image.new("L", (8, 8)), "GIF"))
    data[6:10] = struct.pack("<HH", width, height)
    at = data.index(b",\0\0\0\0") + 5
    data[at : at + 4] = struct.pack("<HH", *frame)
    return bytes(data)


def bmp(width: int, height: int, runs: bytes) -> bytes:
    """Return a BMP file with run-length encoding."""
    start = 14 + 40 + 1024
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", start + len(runs), 0, 0, start) + header + bytes(1024) + runs


def scans(count: int) -> bytes:
    """Return a progressive JPEG file whose last scan is repeated."""
    data = encoded(Image.new("L", (1000, 1000)), "JPEG", progressive=True)
    at = data.rindex(b"\xff\xda")
    return data[:at] + data[at:-2] * count + data[-2:]


def refused() -> Iterator[tuple[str, bytes, str]]:
    """Yield names, contents and what the error says."""
    small = drawing(16, 16)
    yield "zero bytes", b"", "empty"
    yield "too many bytes", bytes(MAX_BYTES + 1), "20,000,001 bytes"
    yield "too many bytes of a picture", png(8, 8, chunk(b"juNK", bytes(MAX_BYTES))), "at most 20,000,000"
    yield "noise", bytes(range(256)) * 8, "not a picture in a known format; expected PNG, JPEG, WebP, GIF, BMP or TIFF"
    yield "text", b"Hello", "not a picture"
    yield "PNG of 30,000 x 30,000", png(30_000, 30_000), "pixels"
    yield (
        "PNG of 13,000 x 13,000",
        png(13_000, 13_000),
        "13,000 x 13,000 pixels; allowed are sides of 30,000 and 67,108,864 pixels in all",
    )
    yield (
        "PNG of 2 billion columns",
        png(8, 8).replace(struct.pack(">II", 8, 8), struct.pack(">II", 2**31 - 1, 1), 1),
        "",
    )
    yield "PNG of 1 x 40,000", png(1, 40_000), "1 x 40,000 pixels"
    yield "JPEG of 60,000 x 60,000", jpeg(60_000, 60_000), "pixels"
    yield "JPEG of 12,000 x 12,000", jpeg(12_000, 12_000), "12,000 x 12,000 pixels"
    yield "JPEG of 2,000 scans", scans(2000), "2,005 JPEG scans"
    picture = encoded(Image.new("L", (1000, 1000)), "TIFF", compression="jpeg")
    yield "TIFF of 2,000 scans", picture + b"\xff\xda" * 2000, "JPEG scans"
    yield "TIFF that claims more data than it has", tiff(strip_bytes=10_000_000), "claims more data than it has"
    yield "BMP of runs", bmp(8192, 8192, b"\xff\5" * 300_000), "takes too long to decode; save it as PNG"
    yield "BMP of runs that end nowhere", bmp(8, 8, b"\xff\5" * 2_000_000), "takes too long to decode"
    yield "TIFF of 30,000 x 30,000", tiff(width=30_000, height=30_000), "pixels"
    yield "TIFF of 10,000 x 10,000", tiff(width=10_000, height=10_000), "10,000 x 10,000 pixels"
    yield "TIFF with a tile of 30,000 x 30,000", tiff(tile_width=30_000, tile_height=30_000), "pixels"
    yield "TIFF with a tile of 12,000 x 12,000", tiff(tile_width=12_000, tile_height=12_000), "pixels"
    yield "WebP canvas of 16,384 x 16,384", webp(16_384, 16_384), "pixels"
    yield "WebP canvas of 10,000 x 10,000", webp(10_000, 10_000), "10,000 x 10,000 pixels"
    yield "GIF of 65,535 x 65,535", gif(65_535, 65_535, (8, 8)), "pixels"
    yield "GIF of 9,000 x 9,000", gif(9_000, 9_000, (8, 8)), "9,000 x 9,000 pixels"
    yield "GIF with a frame of 60,000 x 60,000", gif(8, 8, (60_000, 60_000)), "pixels"
    yield "GIF with a frame of 10,000 x 10,000", gif(8, 8, (10_000, 10_000)), "10,000 x 10,000 pixels"
    yield (
        "BMP of 40,000 x 40,000",
        encoded(small, "BMP").replace(struct.pack("<II", 16, 16), struct.pack("<II", 40_000, 40_000), 1),
        "pixels",
    )
    bomb = zlib.compress(bytes(300_000_000), 1)
    yield "PNG whose text inflates", png(8, 8, chunk(b"zTXt", b"note\0\0" + bomb)), "damaged"
    yield "PNG whose profile inflates", png(8, 8, chunk(b"iCCP", b"icc\0\0" + bomb)), "damaged"
    yield "SVG", b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"
    yield "SVG without a declaration", b"  <svg/>", "SVG"
    yield "web page", b"<!doctype html><html>", "a web page: download the picture itself"
    yield "PDF", b"%PDF-1.7\n", "a PDF file"
    yield "HEIC", b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC file: save it as PNG or JPEG"
    yield "AVIF", b"\0\0\0\x18ftypavif\0\0\0\0", "an AVIF file"
    yield "video", b"\0\0\0\x18ftypmp42\0\0\0\0", "a video"
    yield "ICO", b"\0\0\1\0\1\0", "not a picture"
    for kind in ("PNG", "JPEG", "WebP", "GIF", "BMP", "TIFF"):
        data = encoded(drawing(200, 200), kind)
        for share in (0.1, 0.5, 0.9):
            yield (
                f"{kind} cut after {share:.0%}",
                data[: int(len(data) * share)],
                f"the {kind} file is damaged or incomplete",
            )
        yield f"{kind}, its first bytes alone", data[:12], f"the {kind} file is damaged or incomplete"


def many_frames() -> Iterator[tuple[str, bytes]]:
    """Yield animations of 10,000 frames, whose first frame is a picture like any other."""
    data = encoded(Image.new("L", (8, 8)), "GIF")
    frame = data[data.index(b",\0\0\0\0") : -1]
    yield "GIF", data[:-1] + frame * 9_999 + b";"
    control = chunk(b"acTL", struct.pack(">II", 10_000, 0))
    yield "PNG", png(8, 8, control, chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, 8, 8, 0, 0, 1, 10, 0, 0)))


def cost(data: bytes) -> tuple[str, float, float]:
    """Read a file in a child process. Return the error's message, seconds of CPU time, and MB beside the file."""
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, end_of(data).encode())
        finally:
            os._exit(0)  # nothing of the parent's is to be cleaned up
    os.close(writer)
    with os.fdopen(reader) as answers:
        answer = answers.read()
    _, _, used = os.wait4(child, 0)
    return answer, used.ru_utime + used.ru_stime, (used.ru_maxrss * 1024 - before) / 1e6


def end_of(data: bytes) -> str:
    try:
        return f"read: {open_picture(data, 'file').size}"
    except InputError as error:
        return str(error)
    except BaseException as error:
        return repr(error)


def against_server() -> bool:
    """Send every file to a server of gesso-sudoku, print how it answers, and return whether it withstands them."""
    from tests.serve.image_requests import CHAT, chat, part
    from tests.serving import serving
    from tools.load import processes

    def resident(pid: int) -> int:
        return sum(map(processes.resident_bytes, [pid, *processes.descendants(pid)]))

    ends: Counter[str] = Counter()
    slowest, peak = 0.0, 0
    with tempfile.TemporaryDirectory() as directory:
        options = ("--model", "gesso-sudoku", "--name", "sudoku", "--threads", "1")
        with serving(Path(directory) / "log", *options) as server:
            server.wait_ready()
            engine = server.engine_pid()
            before = resident(server.process.pid)
            files = [(name, data, 400) for name, data, _ in refused()]
            files += [(f"{kind} of 10,000 frames", data, 200) for kind, data in many_frames()]
            for name, data, expected in files:
                began = time.monotonic()
                response = server.http.post(CHAT, json=chat([part(data), {"type": "text", "text": "What?"}]))
                slowest = max(slowest, time.monotonic() - began)
                peak = max(peak, resident(server.process.pid))
                ends[str(response.status_code)] += 1
                if response.status_code != expected and not (response.status_code == 413 and len(data) > MAX_BYTES):
                    ends["unexpected"] += 1
                    print(f"unexpected: {name}: {response.status_code} {response.text[:300]}")
            if server.engine_pid() != engine:
                ends["unexpected"] += 1
                print("unexpected: the engine process was replaced")
    print(f"{len(files)} files in a server of gesso-sudoku: {dict(ends)}; slowest answer {slowest:.1f} s;")
    print(f"its processes have {before / 1e6:.0f} MB before, and at most {peak / 1e6:.0f} MB after an answer")
    return not ends["unexpected"]


def main() -> None:
    if "--server" in sys.argv[1:]:
        sys.exit(0 if against_server() else 1)
    open_picture(encoded(drawing(16, 16), "TIFF"), "file")  # imports are not part of what is measured
    json.dump([(name, expected, *cost(data)) for name, data, expected in refused()], sys.stdout)


if __name__ == "__main__":
    main()
