"""Convert a checkpoint to a GGUF file: `gesso quantize SRC DST.gguf --format gguf --to q4_k_m`."""

from pathlib import Path

from gesso.checkpoint import huggingface
from gesso.checkpoint.gguf.choose import mixture
from gesso.checkpoint.gguf.write import check_target, write
from gesso.checkpoint.quantize.convert import Report
from gesso.errors import InputError
from gesso.model.config import Config


def quantize(source: str | Path, target: Path, to: str) -> Report:
    """Write the text model with the types that llama.cpp gives this name."""
    mixture(to)
    target = target.expanduser()
    check_target(target)
    directory = huggingface.find(source)
    config = Config.from_directory(directory)
    if config.quantization is not None:
        raise InputError(
            f"{directory} is already quantized to {config.quantization}; give the checkpoint it was quantized from"
        )
    huggingface.check(directory, config)
    errors = write(target, config, directory, huggingface.tensors(directory, f"quantizing to {to}"), to)
    return Report(
        format=to,
        source=str(directory),
        directory=str(target),
        source_bytes=sum(file.stat().st_size for file in huggingface.weight_files(directory)),
        bytes=target.stat().st_size,
        errors=errors,
    )
