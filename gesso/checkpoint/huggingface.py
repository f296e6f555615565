"""Find and load checkpoints in the Hugging Face layout. `saving` writes them.

Weights go from disk to their device one tensor at a time, so that the peak is the model plus one tensor. Everything
that can be wrong with a directory is looked up in the file headers first and reported together.
"""

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gesso import bundled as box
from gesso.checkpoint.vision import is_vision
from gesso.errors import CheckpointError, InputError
from gesso.files import check_regular, read_json
from gesso.model.config import LAYERS, Config

if TYPE_CHECKING:  # torch takes a second to import; `gesso info` on a bad path should not
    import torch
    from torch import Tensor

    from gesso.checkpoint.quantize.matrices import Layout
    from gesso.checkpoint.quantize.packed import Weight
    from gesso.model.transformer import DiffusionGemma

logger = logging.getLogger("gesso")

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model"]
LONG_LOAD = 10**9  # bytes from which on a progress bar is worth showing
FLOATS = ("F32", "BF16", "F16", "F64")  # as safetensors names the dtypes of weights that are not packed


# --- find ---------------------------------------------------------------------------------------------------------


def find(name: str | Path | None) -> Path:
    """The directory of a checkpoint: one in the box (None is the base), a local one, or a hub name.

    A name in the box is that one wherever it is said: a directory of the same name is `./` and the name, or a `Path`.
    What comes from the hub is downloaded once and resumed if cut off.
    """
    if name is None:
        return box.directory()
    if isinstance(name, str) and name in box.DIRECTORIES:
        return box.directory(name)
    path = Path(name).expanduser()
    if str(name) and path.is_dir():
        return path
    if path.is_file():
        raise CheckpointError(f"{path} is a file; give the checkpoint's directory")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", str(name)):
        raise CheckpointError(
            f"no directory {str(name)!r}, and it is neither a hub name of the form owner/model nor in the box "
            f"({', '.join(box.DIRECTORIES)})"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(name), allow_patterns=PATTERNS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"{name!r} is not a local directory and could not be fetched from the hub ({type(error).__name__}): "
            f"{str(error).splitlines()[0]} Check the name, the network, HF_TOKEN for gated models and HF_HUB_OFFLINE."
        ) from error


def weight_files(directory: Path) -> list[Path]:
    """The files that hold the weights, as the index names them; missing ones included."""
    if (directory / INDEX).exists():
        names = read_json(directory / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise CheckpointError(f"{directory / INDEX} has no weight_map")
        if wrong := [name for name in names.values() if not _is_plain(name)]:
            raise CheckpointError(f"{directory / INDEX} names {wrong[0]!r}, which is no file of this directory")
        return [directory / name for name in sorted(set(names.values()))]
    return [directory / SINGLE] if (directory / SINGLE).exists() else []


def _is_plain(name: Any) -> bool:
    """The name of a file, not a way to somewhere else."""
    return isinstance(name, str) and name != "" and Path(name).name == name


# --- what a directory holds, and what is wrong with it ------------------------------------------------------------


def checkpoint_name(name: str) -> str:
    """Our parameter name in the checkpoint's words."""
    for pattern, words in _RENAMES:
        name = re.sub(pattern, words, name)
    return name


_RENAMES = (
    (r"^lm_head$", "lm_head.weight"),
    (r"\.layer_scalars\.(\d+)$", r".layers.\1.layer_scalar"),
    (r"^encoder\.", "model.encoder.language_model."),
    (r"^(decoder|self_conditioning)\.", r"model.\1."),
    (r"^model\.self_conditioning\.", "model.decoder.self_conditioning."),
)


def problems(directory: Path, config: Config) -> list[str]:
    """Everything that would keep the weights from loading, from the headers alone; empty when all is well."""
    files = weight_files(directory)
    if not files:
        return [f"no weights: neither {SINGLE} nor {INDEX} in {directory}"]
    found, wrong = {}, []
    for file in files:
        try:
            found.update(_header(file))
        except CheckpointError as error:
            wrong.append(str(error))
    if wrong:  # with a file unread, every tensor in it would seem missing too
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
        wrong.append(f"surplus tensors that this configuration has no place for: {_some(surplus)}")
    for name in (name for name in expected if name in found):
        shape, dtype = found[name]
        if shape != expected[name]:
            wrong.append(f"tensor {name} has shape {list(shape)}, the configuration asks for {list(expected[name])}")
        if name in packed and dtype not in (able := _dtypes(packed[name][1])):
            wrong.append(f"tensor {name} is stored as {dtype}, {config.quantization} asks for {able[0]}")
        if name not in packed and dtype not in FLOATS:
            wrong.append(f"tensor {name} is stored as {dtype}, expected floating-point numbers: {', '.join(FLOATS)}")
    return wrong


def _expected(config: Config) -> "tuple[dict[str, tuple[int, ...]], Layout]":
    """Name and shape of every tensor; for those of packed matrices the dtype too, for there bits are what counts."""
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
    """What safetensors calls it; a float32 scale may be stored as a shorter float, since every one of those is one."""
    names = {"float8_e4m3fn": "F8_E4M3", "uint8": "U8", "int32": "I32", "int64": "I64", "bfloat16": "BF16"}
    return (names[name],) if (name := str(dtype).removeprefix("torch.")) in names else ("F32", "BF16", "F16")


def empty_model(config: Config) -> "DiffusionGemma":
    """The model without weights: names and shapes on the meta device."""
    import torch

    from gesso.model.transformer import DiffusionGemma

    with torch.device("meta"):
        return DiffusionGemma(config)


def _header(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of every tensor."""
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
        raise CheckpointError(f"weight file {file} is corrupt or cut off ({error}); download it again") from None


def _some(names: Iterable[str], most: int = 5) -> str:
    names = sorted(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# --- load ---------------------------------------------------------------------------------------------------------


def load(
    directory: Path, config: Config, device: "torch.device", dtype: "torch.dtype", quantize: str | None = None
) -> "DiffusionGemma":
    """`quantize` packs each matrix as it comes, on its device; `dtype` is that of the rest, and of the products."""
    from gesso.checkpoint.quantize.formats import check_known, gather, pack_all
    from gesso.checkpoint.quantize.packed import Packed

    if quantize is not None:
        check_known(quantize)
        if config.quantization not in (None, quantize, quantize + LAYERS):
            raise InputError(
                f"{directory} is quantized to {config.quantization} already; give the checkpoint it was made from"
            )
    check(directory, config)
    model = empty_model(config.quantized(quantize) if quantize and config.quantization is None else config)
    ours = {checkpoint_name(name): name for name, _ in model.named_parameters()}
    stored: Iterator[tuple[str, Weight]] = _text(directory)
    if config.quantization is not None:
        shapes = {name: model.get_parameter(path).shape for name, path in ours.items()}
        stored = gather(config.quantization, shapes, _text(directory), device)
    elif quantize is not None:
        stored = pack_all(quantize, _text(directory), device)
    for name, weight in stored:
        if isinstance(weight, Packed):
            weight.dtype = dtype
        else:
            # copy=True: a tensor that still points into the mapped file would change with it
            weight = weight.to(device=device, dtype=dtype, copy=True)
        assign(model, ours[name], weight)
    return model.eval()


def check(directory: Path, config: Config) -> None:
    if wrong := problems(directory, config):
        raise CheckpointError(f"cannot load {directory}:\n  " + "\n  ".join(wrong))


def _text(directory: Path) -> Iterator[tuple[str, "Tensor"]]:
    """The tensors of the text model; the vision tower is left out."""
    vision, sees = 0, False
    for name, tensor in tensors(directory, "loading weights"):
        if is_vision(name):
            vision += 1
            sees = sees or bool(tensor.any())  # `saving` writes zeros for a tower that never was
            continue
        if not _is_finite(tensor):
            raise CheckpointError(f"tensor {name} in {directory} holds NaN or infinite values; the file is damaged")
        yield name, tensor
    if sees:
        logger.warning("text only: %d tensors of the vision tower are left out", vision)


def _is_finite(tensor: "Tensor") -> bool:
    import torch

    if not tensor.is_floating_point():
        return True
    if tensor.dtype == torch.float8_e4m3fn:  # has no infinity, and one NaN of either sign; torch has no minimum for it
        return not (tensor.view(torch.uint8) & 0x7F == 0x7F).any()
    return bool(torch.stack(tensor.aminmax()).isfinite().all())


def tensors(directory: Path, label: str) -> Iterator[tuple[str, "Tensor"]]:
    """Every tensor in turn. Each is read through its own mapping, so that the pages of the last one are let go."""
    files = weight_files(directory)
    with _progress(sum(file.stat().st_size for file in files), label) as advance:
        for file in files:
            for name in _header(file):
                with opened(file) as stored:
                    tensor = stored.get_tensor(name)
                yield name, tensor
                advance(tensor.nbytes)


def assign(model: "DiffusionGemma", name: str, weight: "Weight") -> None:
    """Put a weight where the parameter of this name is."""
    from torch import nn

    from gesso.checkpoint.quantize.packed import Packed

    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if isinstance(weight, Packed):
        delattr(module, leaf)  # a module refuses to take another one in a parameter's place
        module.add_module(leaf, weight)
    else:
        module.register_parameter(leaf, nn.Parameter(weight, requires_grad=False))


_watcher: ContextVar[Callable[[int, int], None] | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(report: Callable[[int, int], None]) -> Iterator[None]:
    """While a checkpoint is read, have `report` called with the bytes read so far and all there are."""
    before = _watcher.set(report)
    try:
        yield
    finally:
        _watcher.reset(before)


@contextmanager
def _progress(total: int, label: str) -> Iterator[Any]:
    if report := _watcher.get():
        amounts = [0]

        def advance(amount: int) -> None:
            amounts.append(amounts.pop() + amount)
            report(amounts[0], total)

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
