"""Families of kernels. If a kernel does not work on a card, plain operations take the place of its whole family.

The plain operations run piece by piece, so that a piece gets the same bits alone and in a batch. They are slower, and
passes are no longer captured: a library's product may give other last bits in a captured graph.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from triton.errors import TritonError

Family = Literal["attention", "products", "experts", "vocabulary end", "rows"]
FAMILIES: tuple[Family, ...] = ("attention", "products", "experts", "vocabulary end", "rows")
# What Triton raises as RuntimeError begins with one of these: errors of the driver at a launch, of its compiler, and
# of the C compiler that builds launchers.
STARTS = ("Triton Error [CUDA]", "PassManager::run failed", "Failed to find C compiler", "Internal Triton PTX codegen")
OUT_OF_MEMORY = "out of memory"


class KernelError(Exception):
    """A kernel of a family does not compile or launch. The message is the reason."""

    def __init__(self, family: Family, reason: str) -> None:
        super().__init__(reason)
        self.family = family


@dataclass(frozen=True)
class Kernels:
    """The families whose kernels run; plain operations take the place of the others."""

    off: frozenset[Family] = frozenset()

    def run(self, family: Family) -> bool:
        return family not in self.off

    def without(self, family: Family) -> "Kernels":
        return Kernels(self.off | {family})


ALL = Kernels()


@contextmanager
def launching(family: Family) -> Iterator[None]:
    """Raise the error of a kernel that does not compile or launch as one of its family."""
    try:
        yield
    except Exception as error:
        if is_of_kernel(error):
            raise KernelError(family, _reason(error)) from error
        raise


def is_of_kernel(error: Exception) -> bool:
    """Return whether an error says that a kernel does not compile or launch, or that a library is missing.

    Lack of memory is not one: a request's text would depend on who else uses the GPU.
    """
    if isinstance(error, TritonError | ImportError | subprocess.CalledProcessError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and text.startswith(STARTS) and OUT_OF_MEMORY not in text


def _reason(error: Exception) -> str:
    """Return the last line of an error, which says what is wrong; a compiler's error begins with its source."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip()}" if lines else type(error).__name__
