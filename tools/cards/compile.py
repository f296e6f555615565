"""Compile the launches of one card: `python -m tools.cards.compile CARD FILE`.

Results are appended to FILE, one JSON object per line: after an error of the compiler that ends the process, the next
one goes on with the next kernel, and kernels that have not changed are not compiled again.
"""

import json
import re
import struct
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import triton
from triton.backends.compiler import GPUTarget

from gesso.cards.card import Card
from gesso.cards.named import find
from tools.cards.launches import Launch, record
from tools.cards.sources import source_hash
from tools.cards.table import Table

REGISTERS, FRAME = 0x2F, 0x11  # attributes of a kernel in the section .nv.info of a cubin
CRASHED = "the compiler ended the process"


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of a kernel. `frame`: bytes per thread of what has no space in registers."""

    registers: int = 0
    frame: int = 0
    shared: int = 0
    copies: str = ""  # asynchronous: "cp.async", "TMA" or none
    error: str = ""


def compile_launch(launch: Launch, card: Card) -> Compiled:
    """Compile a kernel for a card, whose limits count as errors of the compiler."""
    major, minor = card.capability
    source = launch.function.ASTSource(launch.function, launch.signature, launch.constants, launch.attributes)
    try:
        compiled = triton.compile(source, GPUTarget("cuda", 10 * major + minor, 32), launch.options.__dict__)
    except Exception as error:
        return Compiled(error=first_line(error))
    registers, frame = resources(compiled.asm["cubin"])
    shared, error = compiled.metadata.shared, ""
    if shared > card.block_bytes:
        error = f"{shared / 1024:.0f} KB of shared memory, but a block has {card.block_bytes // 1024} KB"
    return Compiled(registers, frame, shared, asynchronous_copies(compiled.asm["ptx"]), error)


def asynchronous_copies(ptx: str) -> str:
    if "cp.async.bulk" in ptx:
        return "TMA"
    return "cp.async" if "cp.async" in ptx else ""


def resources(cubin: bytes) -> tuple[int, int]:
    """Return the registers of the kernel in a cubin, an ELF file, and the bytes of its stack frame."""
    (table,), (size, count, names) = struct.unpack_from("<Q", cubin, 0x28), struct.unpack_from("<3H", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    strings = sections[names][4]
    registers = frame = 0
    for name, _, _, _, offset, length in sections:
        label = cubin[strings + name : cubin.index(b"\0", strings + name)]
        if label != b".nv.info":
            continue
        at, end = offset, offset + length
        while at < end:
            form, attribute, value = struct.unpack_from("<BBH", cubin, at)
            at += 4
            if form != 4:  # the value is in the header
                continue
            if attribute in (REGISTERS, FRAME):
                (number,) = struct.unpack_from("<I", cubin, at + 4)  # after the number of the function
                registers, frame = (number, frame) if attribute == REGISTERS else (registers, max(frame, number))
            at += value
    return registers, frame


def first_line(error: BaseException) -> str:
    """Return the line of an error that says what is wrong."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\berror\s*:", line)] or lines[-1:] or [""]
    said = re.sub(r"^.*?\berror\s*:\s*", "", telling[0])
    return f"{type(error).__name__}: {said}"[:200]


def _results(file: Path) -> dict[tuple[str, str, str], Compiled | None]:
    """Return what the file has by kernel, variant and hash. None: the process ended while it was compiled."""
    results: dict[tuple[str, str, str], Compiled | None] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        entry: dict[str, Any] = json.loads(line)
        key = entry["kernel"], entry["variant"], entry["hash"]
        results[key] = Compiled(**entry["compiled"]) if "compiled" in entry else None
    return results


def _table_results(card: Card) -> dict[tuple[str, str, str], Compiled | None]:
    """Return what the committed table has of a card, if this version of Triton made it."""
    table = Table.read()
    if card.name not in table.versions.get(triton.__version__, {"cards": ()})["cards"]:
        return {}
    hashes = table.hashes(triton.__version__)
    return {
        (row.kernel, row.variant, hashes[row.kernel]): Compiled(
            registers=row.registers, frame=row.frame, shared=row.shared, copies=row.copies, error=row.error
        )
        for row in table.rows(triton.__version__, card.name)
    }


def _append(out: TextIO, **entry: Any) -> None:
    out.write(json.dumps(entry) + "\n")
    out.flush()


def main() -> None:
    card, file = find(sys.argv[1]), Path(sys.argv[2])
    results = _table_results(card) | _results(file)
    rows = []
    with file.open("a") as out:
        recorded = record(card)
        for launch in recorded.launches:
            name = {"kernel": launch.kernel, "variant": launch.variant, "hash": source_hash(launch.function)}
            key = name["kernel"], name["variant"], name["hash"]
            if key not in results:
                _append(out, **name)
                results[key] = compile_launch(launch, card)
                _append(out, **name, compiled=asdict(results[key]))
            compiled = results[key] or Compiled(error=CRASHED)
            rows.append({**name, "models": launch.models, **asdict(compiled)})
    table = {"triton": triton.__version__, "card": card.name, "off": recorded.off, "rows": rows}
    file.with_suffix(".json").write_text(json.dumps(table))


if __name__ == "__main__":
    main()
