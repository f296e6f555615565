"""DiffusionGemma for one's own machine: text that comes out of noise, a canvas at a time.

>>> import gesso
>>> g = gesso.load()
>>> g.generate("def fib(n):", max_new_tokens=64, seed=7).text

Importing this package imports no torch; `load` does.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gesso.errors import CheckpointError, GessoError, InputError
from gesso.settings import PRESETS, Diffusion

if TYPE_CHECKING:
    import torch

    from gesso.api import Gesso

__version__ = "0.1.0"
__all__ = ["PRESETS", "CheckpointError", "Diffusion", "GessoError", "InputError", "load"]


def load(
    name: str | Path | None = None,
    *,
    device: "str | torch.device | None" = None,
    dtype: "str | torch.dtype | None" = None,
    quantize: str | None = None,
    adapter: str | Path | Mapping[str, str | Path] | None = None,
    max_batch: int = 8,
    max_length: int | None = None,
) -> "Gesso":
    """Load a checkpoint: a directory, a hub name, or a model in the box: gesso-mini (also None) or gesso-sudoku.

    `device` defaults to the first GPU, or the CPU; `dtype` to bfloat16 on a GPU and float32 on the CPU. `quantize`
    (fp8, int4, nvfp4; with -layers behind it, all but the embeddings) packs the weights while they load; a directory
    that `gesso quantize` wrote needs no such word.
    `adapter` is the directory of one in peft's format, or several by name, of which the first acts until
    `Gesso.use_adapter` says otherwise. `max_batch` requests share the engine at once; `max_length` bounds prompt and
    answer below what the model itself allows.
    """
    from gesso.api import load as load_model

    return load_model(
        name,
        device=device,
        dtype=dtype,
        quantize=quantize,
        adapter=adapter,
        max_batch=max_batch,
        max_length=max_length,
    )


_LAZY = {
    "Gesso": "gesso.api",
    "ChatResult": "gesso.api",
    **dict.fromkeys(("EditResult", "HolesResult", "InfillResult"), "gesso.infill.filling"),
    **dict.fromkeys(("Commit", "Done", "Draft", "Result", "Usage"), "gesso.engine.events"),
}


def __getattr__(name: str) -> Any:
    """The types of what comes back, imported (and torch with them) when first asked for."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gesso' has no attribute {name!r}")
