"""Checkpoints of 26B parameters, on a machine that can hold them: written, loaded and measured. Prints JSON.

    python -m tools.full_size write LAYOUT DIRECTORY    random weights in the layout of a tool
    python -m tools.full_size measure MODEL             load it: seconds, memory of host and GPU, ms per step
    python -m tools.full_size native MODEL              ms per step of random weights in the same formats of the kernels
    python -m tools.full_size start MODEL               seconds from the start of a server to its first token
    python -m tools.full_size stream --memory 12GB      int4 with experts that stream from host memory

LAYOUT is compressed-tensors, modelopt, mlx or gguf. MODEL may be random:26b-a4b, with --quantize.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.full_size", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    write = commands.add_parser("write")
    write.add_argument("layout")
    write.add_argument("directory", type=Path)
    write.add_argument("--changes", type=json.loads, default={}, help="JSON of changes to the text_config")
    for name in ("measure", "native", "start"):
        command = commands.add_parser(name)
        command.add_argument("model")
        command.add_argument("--quantize")
    stream = commands.add_parser("stream")
    stream.add_argument("--memory", default="0.9", help="share or size, as for gesso")
    stream.add_argument("--model", default="random:26b-a4b")
    stream.add_argument("--device", default="cuda")
    json.dump(run(parser.parse_args(arguments)), sys.stdout)
    print(flush=True)


def run(asked: argparse.Namespace) -> dict[str, Any]:
    if asked.command == "write":
        from tools.full_size import layouts

        began = time.perf_counter()
        layouts.write(asked.layout, asked.directory, layouts.shape_config(**asked.changes))
        return {"layout": asked.layout, "seconds_to_write": time.perf_counter() - began}
    if asked.command == "stream":
        from tools.full_size.stream import stream

        return stream(asked.memory, asked.model, asked.device)
    from tools.full_size import measures

    match asked.command:
        case "measure":
            return measures.loaded(asked.model, asked.quantize)
        case "native":
            return measures.native(asked.model)
    return measures.first_token(asked.model)


if __name__ == "__main__":
    main()
