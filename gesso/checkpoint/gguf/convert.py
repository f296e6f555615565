"""Convert a checkpoint to a GGUF file: `gesso quantize SRC DST.gguf --format gguf --to q4_k_m`."""

from pathlib import Path

from gesso.checkpoint.gguf.choose import mixture
from gesso.checkpoint.gguf.write import check_target, write
from gesso.checkpoint.quantize.convert import ConversionReport, open_unquantized, stored_tensors


def quantize(source: str | Path, target: Path, to: str) -> ConversionReport:
    """Write the text model with the types that llama.cpp gives this name."""
    mixture(to)
    target = target.expanduser()
    check_target(target)
    opened = open_unquantized(source)
    errors = write(target, opened.config, opened.directory, stored_tensors(opened, f"quantizing to {to}"), to)
    return ConversionReport(
        format=to,
        source=str(opened.path),
        directory=str(target),
        source_bytes=sum(file.stat().st_size for file in opened.files),
        bytes=target.stat().st_size,
        errors=errors,
    )
