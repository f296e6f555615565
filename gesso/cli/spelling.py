"""Command names from other programs: aliases, and names for which a command is suggested."""

from collections.abc import Mapping
from types import MappingProxyType

# As Ollama names them.
ALSO: Mapping[str, str] = MappingProxyType({"list": "models", "ls": "models", "run": "chat"})
# Commands for names that are not commands. For a misspelled name, the most similar command is suggested.
MEANT: Mapping[str, str] = MappingProxyType(
    {
        "ask": "chat",
        "benchmark": "bench",
        "classify": "decide",
        "complete": "generate",
        "completion": "--install-completion",
        "convert": "quantize",
        "delete": "rm",
        "describe": "info",
        "download": "pull",
        "evaluate": "eval",
        "fill": "infill",
        "finetune": "train",
        "fine-tune": "train",
        "help": "--help",
        "remove": "rm",
        "rewrite": "edit",
        "server": "serve",
        "show": "info",
        "start": "serve",
        "test": "eval",
        "ui": "serve --open",
        "studio": "serve --open",
        "upload": "push",
        "version": "--version",
    }
)
