"""Running out of GPU memory in training: say what to change."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gesso.errors import GessoError

ADVICE = (
    "Quantize the frozen weights (model.quantize or --quantize int4), recompute activations "
    "(run.checkpoint_activations = true), lower data.max_length or run.batch_size, or train an adapter of lower rank "
    "or on fewer weights (lora.rank, lora.targets)."
)


@contextmanager
def explained() -> Iterator[None]:
    """Raise a GessoError with advice if the GPU runs out of memory in this block."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        needed = "; ".join(str(error).split(". ")[1:3])  # what was to be allocated, and what is free
        raise GessoError(f"training ran out of GPU memory{needed and f' ({needed})'}. {ADVICE}") from error
