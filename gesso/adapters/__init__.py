"""LoRA adapters: `lora.py` has the modules, `attach.py` attaches and merges them, `files.py` reads and writes them.

`merging.py` merges one into a checkpoint on disk.
"""

from gesso.adapters.attach import (
    TARGETS,
    LoraSettings,
    StoredAdapter,
    activate,
    active,
    add,
    attach,
    factor_values,
    merge,
    remove,
)
from gesso.adapters.files import load, read, save
from gesso.adapters.lora import adaptable_weights, attached

__all__ = [
    "TARGETS",
    "LoraSettings",
    "StoredAdapter",
    "activate",
    "active",
    "adaptable_weights",
    "add",
    "attach",
    "attached",
    "factor_values",
    "load",
    "merge",
    "read",
    "remove",
    "save",
]
