"""Find, check and load checkpoints in the Hugging Face layout. `write` saves them.

Weights move from disk to their device one tensor at a time, so memory peaks at the model plus one tensor. All problems
of a directory are found in the file headers first and reported together.
"""

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gesso import bundled
from gesso.checkpoint import aliases, hub
from gesso.checkpoint.cache import INDEX as INDEX
from gesso.checkpoint.cache import SINGLE as SINGLE
from gesso.checkpoint.cache import HubName
from gesso.checkpoint.vision import is_vision
from gesso.errors import CheckpointError, InputError
from gesso.files import check_regular, read_json
from gesso.model.config import LAYERS, Config

if TYPE_CHECKING:  # importing torch takes a second, too long to report a bad path
    import torch
    from torch import Tensor

    from gesso.checkpoint.quantize.matrices import Layout
    from gesso.checkpoint.quantize.packed import Weight
    from gesso.model.transformer import DiffusionGemma

logger = logging.getLogger("gesso")

LONG_LOAD = 10**9  # bytes from which on a progress bar is shown
FLOATS = ("F32", "BF16", "F16", "F64")  # safetensors dtypes of weights that are not packed


# --- find ---------------------------------------------------------------------------------------------------------


def find(name: str | Path | None, *, weights: bool = True) -> Path:
    """Return the directory of a checkpoint: a bundled model (None: gesso-mini), a local directory or a hub name.

    The name of a bundled model always means that model, and so does an alias; a local directory of the same name is
    given as `./name` or as a `Path`. A hub checkpoint is downloaded once, and an interrupted download is resumed.
    Without `weights`, only the other files are downloaded. Of GGUF, the file is returned.
    """
    if name is None:
        return bundled.directory()
    if isinstance(name, str) and name in bundled.DIRECTORIES:
        return bundled.directory(name)
    name = aliases.hub_name(name)
    path = Path(name).expanduser()
    if str(name) and path.is_dir():
        return path
    if path.is_file():
        raise CheckpointError(f"{path} is a file; give the checkpoint's directory")
    if (hub_name := HubName.parse(str(name))) is None:
        raise CheckpointError(
            f"no directory {str(name)!r}, and it is neither a hub name of the form owner/model nor a bundled model "
            f"({', '.join(bundled.DIRECTORIES)})"
        )
    return hub.find(hub_name, weights=weights)


def weight_files(directory: Path) -> list[Path]:
    """Return the weight files that the index names, missing ones included."""
    if (directory / INDEX).exists():
        names = read_json(directory / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise CheckpointError(f"{directory / INDEX} has no weight_map")
        if wrong := [name for name in names.values() if not _is_file_name(name)]:
            raise CheckpointError(f"{directory / INDEX} names {wrong[0]!r}, which is not a file of this directory")
        return [directory / name for name in sorted(set(names.values()))]
    return [directory / SINGLE] if (directory / SINGLE).exists() else []


def _is_file_name(name: Any) -> bool:
    """Return whether this is a plain file name, without a path to another directory."""
    return isinstance(name, str) and name != "" and Path(name).name == name


# --- check --------------------------------------------------------------------------------------------------------


def checkpoint_name(name: str) -> str:
    """Return the checkpoint's name for a parameter of the model."""
    for pattern, replacement in _RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


_RENAMES = (
    (r"^lm_head$", "lm_head.weight"),
    (r"\.layer_scalars\.(\d+)$", r".layers.\1.layer_scalar"),
    (r"^encoder\.", "model.encoder.language_model."),
    (r"^(decoder|self_conditioning)\.", r"model.\1."),
    (r"^model\.self_conditioning\.", "model.decoder.self_conditioning."),
)


def problems(directory: Path, config: Config) -> list[str]:
    """Return all problems that would prevent loading the weights, from the headers alone."""
    files = weight_files(directory)
    if not files:
        return [f"no weights: neither {SINGLE} nor {INDEX} in {directory}"]
    found, wrong = {}, []
    for file in files:
        try:
            found.update(_header(file))
        except CheckpointError as error:
            wrong.append(str(error))
    if wrong:  # every tensor of an unreadable file would be reported as missing
        return wrong
    try:
        expected, packed = _expected(config)
    except InputError as error:
        return [str(error)]
    missing = [name for name in expected if name not in found]
    surplus = [name for name in found if name not in expected and not is_vision(name)]
    if missing:
        wrong.append(f"missing tensors: {_some(missing)}")
    if surplus:
        wrong.append(f"surplus tensors that this configuration does not have: {_some(surplus)}")
    for name in (name for name in expected if name in found):
        shape, dtype = found[name]
        if shape != expected[name]:
            wrong.append(f"tensor {name} has shape {list(shape)}, expected {list(expected[name])}")
        if name in packed and dtype not in (allowed := _dtypes(packed[name][1])):
            wrong.append(f"tensor {name} is stored as {dtype}, expected {allowed[0]} for {config.quantization}")
        if name not in packed and dtype not in FLOATS:
            wrong.append(f"tensor {name} is stored as {dtype}, expected floating-point numbers: {', '.join(FLOATS)}")
    return wrong


def _expected(config: Config) -> "tuple[dict[str, tuple[int, ...]], Layout]":
    """Return the shape of every tensor by name, and shape and dtype of those that belong to packed matrices."""
    from gesso.checkpoint.quantize.formats import format_of

    shapes: dict[str, tuple[int, ...]] = {}
    packed: Layout = {}
    for ours, parameter in empty_model(config).named_parameters():
        name, shape = checkpoint_name(ours), tuple(parameter.shape)
        if config.quantization is not None and (format := format_of(ours, shape, config.quantization)):
            packed |= format.stored(name, shape)
        else:
            shapes[name] = shape
    return {**shapes, **{name: shape for name, (shape, _) in packed.items()}}, packed


def _dtypes(dtype: "torch.dtype") -> tuple[str, ...]:
    """Return the safetensors names of a dtype. A float32 scale may be stored in a shorter float, which is exact."""
    names = {"float8_e4m3fn": "F8_E4M3", "uint8": "U8", "int32": "I32", "int64": "I64", "bfloat16": "BF16"}
    return (names[name],) if (name := str(dtype).removeprefix("torch.")) in names else ("F32", "BF16", "F16")


def empty_model(config: Config) -> "DiffusionGemma":
    """Return the model without weights: names and shapes on the meta device."""
    import torch

    from gesso.model.transformer import DiffusionGemma

    with torch.device("meta"):
        return DiffusionGemma(config)


def _header(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of every tensor in a file by name."""
    with opened(file) as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        return {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(file)
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except FileNotFoundError:
        raise CheckpointError(f"weight file {file.name} is missing from {file.parent}; download it again") from None
    except OSError as error:
        raise CheckpointError(f"weight file {file} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise CheckpointError(f"weight file {file} is corrupt or truncated ({error}); download it again") from None


def _some(names: Iterable[str], most: int = 5) -> str:
    names = sorted(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# --- load ---------------------------------------------------------------------------------------------------------


def load(
    directory: Path, config: Config, device: "torch.device", dtype: "torch.dtype", quantize: str | None = None
) -> "DiffusionGemma":
    """Load the text model. `dtype` is that of unpacked weights and of products.

    `quantize` packs each matrix on its device as it is read.
    """
    from gesso.checkpoint.quantize.formats import check_known, gather, pack_all
    from gesso.checkpoint.quantize.packed import Packed

    if quantize is not None:
        check_known(quantize)
        if config.quantization not in (None, quantize, quantize + LAYERS):
            raise InputError(
                f"{directory} is already quantized to {config.quantization}; give the checkpoint it was quantized from"
            )
    check(directory, config)
    model = empty_model(config.quantized(quantize) if quantize and config.quantization is None else config)
    ours = {checkpoint_name(name): name for name, _ in model.named_parameters()}
    stored: Iterator[tuple[str, Weight]] = _text_tensors(directory)
    if config.quantization is not None:
        shapes = {name: model.get_parameter(path).shape for name, path in ours.items()}
        stored = gather(config.quantization, shapes, _text_tensors(directory), device)
    elif quantize is not None:
        stored = pack_all(quantize, _text_tensors(directory), device)
    for name, weight in stored:
        if isinstance(weight, Packed):
            weight.dtype = dtype
        else:
            # copy=True: a tensor in the mapped file would change with the file
            weight = weight.to(device=device, dtype=dtype, copy=True)
        assign(model, ours[name], weight)
    return model.eval()


def check(directory: Path, config: Config) -> None:
    """Raise an error that lists all problems, if there are any."""
    if wrong := problems(directory, config):
        raise CheckpointError(f"cannot load {directory}:\n  " + "\n  ".join(wrong))


def _text_tensors(directory: Path) -> Iterator[tuple[str, "Tensor"]]:
    """Yield the tensors of the text model, without the vision tower."""
    vision, trained = 0, False
    for name, tensor in tensors(directory, "loading weights"):
        if is_vision(name):
            vision += 1
            trained = trained or bool(tensor.any())  # `write` saves a missing tower as zeros
            continue
        if not _is_finite(tensor):
            raise CheckpointError(f"tensor {name} in {directory} contains NaN or infinite values; the file is damaged")
        yield name, tensor
    if trained:
        logger.warning("text only: %d tensors of the vision tower are left out", vision)


def _is_finite(tensor: "Tensor") -> bool:
    import torch

    if not tensor.is_floating_point():
        return True
    if tensor.dtype == torch.float8_e4m3fn:  # no infinity, one NaN per sign, and no aminmax in torch
        return not (tensor.view(torch.uint8) & 0x7F == 0x7F).any()
    return bool(torch.stack(tensor.aminmax()).isfinite().all())


def tensors(directory: Path, label: str) -> Iterator[tuple[str, "Tensor"]]:
    """Yield every tensor. Each is read through its own mapping, so the pages of the previous one are released."""
    files = weight_files(directory)
    with _progress(sum(file.stat().st_size for file in files), label) as advance:
        for file in files:
            for name in _header(file):
                with opened(file) as stored:
                    tensor = stored.get_tensor(name)
                yield name, tensor
                advance(tensor.nbytes)


def assign(model: "DiffusionGemma", name: str, weight: "Weight") -> None:
    """Replace the parameter of this name by a weight."""
    from torch import nn

    from gesso.checkpoint.quantize.packed import Packed

    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if isinstance(weight, Packed):
        delattr(module, leaf)  # torch rejects a submodule with the name of a parameter
        module.add_module(leaf, weight)
    else:
        module.register_parameter(leaf, nn.Parameter(weight, requires_grad=False))


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
    """Yield a function that reports the bytes of a tensor: to the callback, to a progress bar, or nowhere."""
    if report := _progress_callback.get():
        done = 0

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            report(done, total)

        yield advance
        return
    if total < LONG_LOAD or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(label), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda amount: bar.advance(task, amount)
