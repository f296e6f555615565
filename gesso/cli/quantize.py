"""`gesso quantize`."""

from pathlib import Path
from typing import Annotated

import typer

from gesso.cli.terminal import print_report
from gesso.errors import InputError


def quantize(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Directory or hub name of a checkpoint.")],
    target: Annotated[
        Path, typer.Argument(metavar="DST", help="The directory to write, new or empty; for gguf, a new file.")
    ],
    to: Annotated[
        str,
        typer.Option(
            help="fp8 (half the size), int4 or nvfp4 (a third: experts at four bits, the rest fp8); "
            "For gguf: q8_0, q4_k_m, q4_0 or bf16."
        ),
    ],
    format: Annotated[
        str,
        typer.Option(
            help="gesso: a directory for gesso. compressed-tensors: one for vLLM and transformers. "
            "gguf: one file, as llama.cpp's converter writes it."
        ),
    ] = "gesso",
    json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Write a quantized copy of a checkpoint and report the error of each matrix."""
    from gesso.checkpoint.gguf import convert as gguf
    from gesso.checkpoint.quantize import convert, export_compressed_tensors

    formats = {
        "gesso": convert.quantize,
        "compressed-tensors": export_compressed_tensors.quantize,
        "gguf": gguf.quantize,
    }
    if format not in formats:
        raise InputError(f"unknown format {format!r}; known are {', '.join(formats)}")
    report = formats[format](source, target, to)
    print_report(report, lambda console: convert.render(report, console), json)
