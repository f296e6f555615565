"""Out of memory: recognize the error, and report what is needed, what is there and a command that fits."""

import shlex
from collections.abc import Sequence

from gesso.errors import DoesNotFitError

# Of the allocators of torch for CUDA and for CPUs, and of CUDA libraries.
SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
LONGEST_COMMAND = 200  # characters; the prompt is part of a command


def ran_out(error: BaseException) -> bool:
    """Return whether memory could not be allocated. Does not import torch, whose OutOfMemoryError is a RuntimeError."""
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in SIGNS)


def shortage(
    model: str | None, *, device: str | None, dtype: str | None, quantize: str | None, memory: float | str
) -> DoesNotFitError:
    """Return the error to report after memory ran out, for the options that the model was loaded with."""
    from gesso.checkpoint import aliases
    from gesso.checkpoint.source import locate
    from gesso.loading import find_device, find_dtype
    from gesso.memory import budget as budgets
    from gesso.memory.device import memory_of

    where = find_device(device)
    device_memory = memory_of(where, ours=True)
    if aliases.is_automatic(model):
        choice = aliases.choose(device_memory.device, device_memory.budget(memory), quantize)
        model, quantize = choice.name, choice.quantize or quantize
    source = locate(model)
    budget = budgets.budget_of(source, device_memory, memory, find_dtype(dtype, where).itemsize, None)
    context = min(budgets.CONTEXT, source.config.max_position_embeddings)
    allowed = budget.precisions() if quantize == "auto" else [quantize or "none"]
    placement = budget.place(allowed, context, 1, shorter=True) or budgets.Placement(allowed[-1])
    needed, fits = budgets.shortage(budget, placement, memory)
    return DoesNotFitError(f"out of memory on {where}: {needed}", fits)


def advice(arguments: Sequence[str], fits: str | None) -> str:
    """Return what to do about a model that does not fit; `fits` is a quantization that would."""
    if fits is None:
        return "use a shorter text, a larger --memory, another device or a smaller model"
    pairs = zip(["", *arguments], arguments, strict=False)  # each word with the one before it
    others = [word for before, word in pairs if "--quantize" not in (before, word.partition("=")[0])]
    # After the name of the command: at the end, it could follow a `--`.
    command = shlex.join(["gesso", *others[:1], "--quantize", fits, *others[1:]])
    return f"this fits: {command}" if len(command) <= LONGEST_COMMAND else f"it fits with --quantize {fits}"
