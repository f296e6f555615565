"""Names of commands that users of other programs type: accepted, or answered with the name of ours."""

from collections.abc import Mapping
from types import MappingProxyType

# As Ollama names them.
ALSO: Mapping[str, str] = MappingProxyType({"list": "models", "ls": "models", "run": "chat"})
# What is meant by a name that is no command. Misspelled names are told by their letters instead.
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
