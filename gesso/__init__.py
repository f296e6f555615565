"""Run DiffusionGemma on your own machine: text from noise, one canvas after another.

>>> import gesso
>>> g = gesso.load()
>>> g.generate("def fib(n):", max_new_tokens=64, seed=7).text

Importing this package does not import torch; `load` does.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gesso import renamed
from gesso.errors import CheckpointError, ConstraintError, GessoError, InputError
from gesso.memory.device import SHARE
from gesso.settings import PRESETS, Diffusion, DiffusionOptions, WriteName

if TYPE_CHECKING:
    import torch

    from gesso.api import Gesso
    from gesso.chat.prompt import Prompt
    from gesso.constraints.schema.options import SchemaOptions
    from gesso.engine.events import Commit, Done, Draft, Result, Usage
    from gesso.images.image import Image
    from gesso.infill.results import EditResult, HolesResult, InfillResult
    from gesso.options import ChatOptions, GenerateOptions, InfillOptions, TextOptions
    from gesso.results import ChatResult, Decision

__version__ = "0.2.0"
__all__ = [
    "PRESETS",
    "ChatOptions",
    "ChatResult",
    "CheckpointError",
    "Commit",
    "ConstraintError",
    "Decision",
    "Diffusion",
    "DiffusionOptions",
    "Done",
    "Draft",
    "EditResult",
    "GenerateOptions",
    "Gesso",
    "GessoError",
    "HolesResult",
    "Image",
    "InfillOptions",
    "InfillResult",
    "InputError",
    "Prompt",
    "Result",
    "SchemaOptions",
    "TextOptions",
    "Usage",
    "load",
]


def load(
    name: str | Path | None = None,
    *,
    device: "str | torch.device | None" = None,
    dtype: "str | torch.dtype | None" = None,
    quantize: str | None = None,
    adapter: str | Path | Mapping[str, str | Path] | None = None,
    max_batch: int = 8,
    max_length: int | None = None,
    memory: float | str = SHARE,
    write: WriteName | None = None,
    decode: str | None = None,
    threads: int | None = None,
    cache_dir: str | Path | None = None,
    text_only: bool = False,
) -> "Gesso":
    """Load a checkpoint: a directory, a hub name, or a bundled model, gesso-mini (the default) or gesso-sudoku.

    A hub model is downloaded when it is first used. "diffusiongemma" is the published checkpoint that suits the device.

    device: for example "cpu" or "cuda:1". Default: the first GPU, or else the CPU.
    dtype: default: bfloat16 on a GPU, float32 on the CPU.
    quantize: pack the weights while they load: "fp8", "int4" or "nvfp4", or on a CPU "int4-int8". "auto" is the
        widest precision that fits: as stored, fp8 or int4. A directory that `gesso quantize` wrote does not need it.
    adapter: directory of an adapter in peft's format, or several by name. Requests name one of them (`adapter=`), or
        use the first until `Gesso.use_adapter` chooses another. `Gesso.load_adapter` loads more.
    max_batch: most requests that run at once.
    max_length: most tokens of prompt and answer together, if less than the model's own limit.
    memory: share of the device's memory that may be used, or a size such as "12GB", which also limits what this
        process can allocate on a GPU. If the weights do not fit on a GPU, the experts of some layers stay in host
        memory and are copied in every step. If that is impossible, nothing is loaded and the error says what would fit.
    write: how requests are written that leave it open: "canvas", "tokens" or "verified". Default: the checkpoint's. If
        a large model runs on a CPU, canvases and tokens are measured, and the faster one is taken. `Gesso.writing` has
        the choice.
    decode: the former name of `write`.
    cache_dir: directory for prompts that a model on a CPU has read, so that another process does not have to read the
        same beginning again. Default: none. The least recently used files are deleted at 20 GB.
    threads: threads of torch on a CPU, in the whole process. Default: one per physical core, but not more than before.
    text_only: leave out the vision tower, which takes memory (1.1 GB in the 26B model); images are then refused.
    """
    from gesso.cores import wait_without_spinning

    if decode is not None:
        write = renamed.translated({"decode": decode, **({} if write is None else {"write": write})}).get("write")
    wait_without_spinning()  # before torch is imported
    from gesso.loading import load as load_model

    return load_model(
        name,
        device=device,
        dtype=dtype,
        quantize=quantize,
        adapter=adapter,
        max_batch=max_batch,
        max_length=max_length,
        memory=memory,
        write=write,
        threads=threads,
        cache_dir=cache_dir,
        text_only=text_only,
    )


# Names whose modules import torch, imported on first access.
_LAZY = {
    "Gesso": "gesso.api",
    "Image": "gesso.images.image",
    "Prompt": "gesso.chat.prompt",
    "SchemaOptions": "gesso.constraints.schema.options",
    **dict.fromkeys(("ChatResult", "Decision"), "gesso.results"),
    **dict.fromkeys(("EditResult", "HolesResult", "InfillResult"), "gesso.infill.results"),
    **dict.fromkeys(("Commit", "Done", "Draft", "Result", "Usage"), "gesso.engine.events"),
    **dict.fromkeys(("ChatOptions", "GenerateOptions", "InfillOptions", "TextOptions"), "gesso.options"),
}

if not TYPE_CHECKING:  # a type checker would accept any attribute of a module with this function

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            return getattr(importlib.import_module(_LAZY[name]), name)
        raise AttributeError(f"module 'gesso' has no attribute {name!r}")
