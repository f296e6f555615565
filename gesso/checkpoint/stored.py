"""Tensors as files store them, and recipes that make the model's parameters from them.

A reader of a format parses file headers into `Stored` tensors and returns one `Recipe` per parameter of the model.
Nothing is read but headers until `transfer` fetches the parts of a recipe.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gesso.checkpoint.parameters import is_vision

if TYPE_CHECKING:  # importing torch takes a second, too long to report a bad path
    from torch import Tensor

    from gesso.checkpoint.quantize.packed import Packed, Weight

FLOATS = ("F32", "BF16", "F16", "F64")  # dtypes of weights that are not packed


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its values are `nbytes` bytes from `offset` on."""

    name: str
    file: Path
    offset: int
    nbytes: int
    dtype: str  # as safetensors names it, such as BF16; for blocks of a GGUF, the name of their type, such as Q4_K
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ParameterRecipe:
    """A way to build a parameter: `build` receives its stored parts, in this order, on the target device.

    `format` names what the file stores. A GPU may need another: then `native` names it, and `repack` converts to it.
    """

    parts: tuple[Stored, ...]
    build: "Callable[[Sequence[Tensor]], Weight]"
    shape: tuple[int, ...]
    format: str
    native: str
    repack: "Callable[[Packed], Weight] | None" = None

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


@dataclass
class Inventory:
    """The stored tensors of a checkpoint. Readers take tensors from it, and it keeps account of all problems."""

    stored: Mapping[str, Stored]
    problems: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def __contains__(self, name: str) -> bool:
        return name in self.stored

    def take(self, name: str, shape: Sequence[int] | None, dtypes: Sequence[str]) -> Stored | None:
        """Return a tensor, or None after noting that it is missing, or that its shape or dtype is wrong.

        Without a shape, any shape is right.
        """
        tensor = self.stored.get(name)
        if tensor is None:
            self.missing.append(name)
            return None
        self.taken.add(name)
        wrong = []
        if shape is not None and tensor.shape != tuple(shape):
            wrong.append(f"tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}")
        if tensor.dtype not in dtypes:
            wrong.append(f"tensor {name} is stored as {tensor.dtype}, expected {_either(dtypes)}")
        self.problems += wrong
        return None if wrong else tensor

    def take_all(self, wanted: Mapping[str, tuple[Sequence[int] | None, Sequence[str]]]) -> tuple[Stored, ...] | None:
        """Return several tensors, given as {name: (shape, dtypes)}, or None if one of them is missing or wrong."""
        tensors = [self.take(name, shape, dtypes) for name, (shape, dtypes) in wanted.items()]
        right = tuple(tensor for tensor in tensors if tensor is not None)
        return right if len(right) == len(tensors) else None

    def ignore(self, names: Iterable[str]) -> None:
        """Accept tensors that the model does not need, so that they are not reported as surplus."""
        self.taken.update(names)

    def report(self) -> list[str]:
        """Return all problems, including tensors that no recipe has taken."""
        surplus = [name for name in self.stored if name not in self.taken and not is_vision(name)]
        problems = []
        if self.missing:
            problems.append(f"missing tensors: {_some(self.missing)}")
        if surplus:
            problems.append(f"surplus tensors that this configuration does not have: {_some(surplus)}")
        return problems + self.problems


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _some(names: Iterable[str], most: int = 5) -> str:
    names = sorted(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
