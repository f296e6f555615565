"""LoRA adapters: what they compute is in `lora.py`, how they get into a model in `sites.py` and `attach.py`.

`files.py` reads and writes them, and `merging.py` merges one into a checkpoint on disk.
"""

from gesso.adapters.attach import StoredAdapter, activate, active, add, attach, factor_values, merge, remove
from gesso.adapters.files import load, read, save
from gesso.adapters.settings import TARGETS, LoraSettings
from gesso.adapters.sites import adaptable_weights, attached

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
