"""LoRA adapters: `lora.py` has the modules, `attach.py` attaches and merges them, `files.py` reads and writes them.

`merging.py` merges one into a checkpoint on disk.
"""

from gesso.adapters.attach import TARGETS, LoraSettings, activate, add, merge
from gesso.adapters.files import load, save

__all__ = ["TARGETS", "LoraSettings", "activate", "add", "load", "merge", "save"]
