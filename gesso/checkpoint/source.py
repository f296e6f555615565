"""A checkpoint of any format: its configuration, its companion files and the recipes of its parameters.

Only headers are read, and those only when they are needed. All problems of a checkpoint are found before any weights
move. The readers import torch, so they are imported when a header is examined: a server's front end needs none.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gesso import bundled
from gesso.checkpoint.companions import directory_of
from gesso.checkpoint.find import find
from gesso.checkpoint.random_weights import PREFIX, config_of, is_random
from gesso.checkpoint.safetensors import INDEX, SINGLE, read_header, weight_files
from gesso.checkpoint.stored import Inventory, ParameterRecipe, Stored
from gesso.errors import CheckpointError, InputError
from gesso.model.config import Config
from gesso.model.quantization_config import TOOLS


def has_separate_experts(names: Iterable[str]) -> bool:
    """Return whether there is a matrix of a single expert."""
    return any(re.search(r"\.experts\.\d+\.", name) for name in names)


@dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint. `path` is its directory or its GGUF file; random weights have none."""

    path: Path | None
    directory: Path  # of config.json, tokenizer and chat template
    config: Config

    @property
    def is_file(self) -> bool:
        """Whether this is a GGUF file rather than a directory."""
        return self.path is not None and self.path.is_file()

    @cached_property
    def files(self) -> list[Path]:
        """The files with weights, missing ones included."""
        if self.is_file:
            return sorted({part.file for part in self._gguf.values()})
        return [] if self.path is None else weight_files(self.path)

    @cached_property
    def headers(self) -> tuple[dict[str, Stored], list[str]]:
        """All stored tensors by name, and the problems of files that cannot be read."""
        if self.is_file:
            return self._gguf, []
        stored: dict[str, Stored] = {}
        problems = []
        for file in self.files:
            try:
                stored |= read_header(file)
            except CheckpointError as error:
                problems.append(str(error))
        return stored, problems

    @cached_property
    def recipes(self) -> Mapping[str, ParameterRecipe]:
        """The recipe of every parameter, by its name in a Hugging Face checkpoint."""
        self.check()
        return self._examined[0]

    @cached_property
    def is_foreign(self) -> bool:
        """Whether the weights have the formats of another tool, so that only the recipes know them.

        Other tools describe some of their layouts as `gesso quantize` describes its own: the names of experts differ.
        """
        tool = self.config.quantization
        return tool in TOOLS or (tool is not None and has_separate_experts(self.headers[0]))

    @property
    def problems(self) -> list[str]:
        """All problems that would prevent loading the weights, from the headers alone."""
        return self._examined[1]

    def check(self) -> None:
        """Raise an error that lists all problems, if there are any."""
        if self.problems:
            raise CheckpointError(f"cannot load {self.path}:\n  " + "\n  ".join(self.problems))

    @cached_property
    def _examined(self) -> tuple[dict[str, ParameterRecipe], list[str]]:
        if not self.files:
            return {}, [f"no weights: neither {SINGLE} nor {INDEX} in {self.path}"]
        stored, problems = self.headers
        if problems:  # every tensor of an unreadable file would be reported as missing
            return {}, problems
        inventory = Inventory(stored)
        try:
            recipes = _recipes(self, inventory)
        except (CheckpointError, InputError) as error:
            return {}, [str(error)]
        return recipes, inventory.report()

    @cached_property
    def _gguf(self) -> dict[str, Stored]:
        from gesso.checkpoint.gguf import file

        assert self.path is not None
        return dict(file.read(self.path).tensors)


def _recipes(source: CheckpointSource, inventory: Inventory) -> dict[str, ParameterRecipe]:
    """Return the recipes of the reader for the checkpoint's format."""
    config = source.config
    match config.quantization:
        case "gguf":
            from gesso.checkpoint.gguf.recipes import recipes

            return recipes(config, inventory)
        case "compressed-tensors":
            from gesso.checkpoint import compressed_tensors

            return compressed_tensors.recipes(config, inventory)
        case "modelopt":
            from gesso.checkpoint import modelopt

            return modelopt.recipes(config, inventory)
        case "mlx":
            from gesso.checkpoint import mlx

            return mlx.recipes(config, inventory)
    from gesso.checkpoint import compressed_tensors, huggingface

    if source.is_foreign:
        return compressed_tensors.recipes(config, inventory)
    return huggingface.recipes(config, inventory)


def locate(name: str | Path | None) -> CheckpointSource:
    """Return a checkpoint by name. A random shape borrows the companion files of the bundled model."""
    if isinstance(name, str) and is_random(name):
        return CheckpointSource(None, bundled.directory(), config_of(name.removeprefix(PREFIX)))
    return open_source(find(name))


def open_source(path: Path) -> CheckpointSource:
    """Open a directory or a GGUF file."""
    directory = directory_of(path) if path.is_file() else path
    return CheckpointSource(path, directory, Config.from_directory(directory))
