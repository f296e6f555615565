"""A faster interpreter of Triton's kernels: the same operations, without work that it repeats at every call.

The functions replaced here are private to Triton (seen in 3.9). If a version lacks one of them, that one keeps its own
speed, and the tests pass all the same.
"""

from collections.abc import Callable
from dataclasses import replace
from types import FunctionType, SimpleNamespace
from typing import Any


def speed_up() -> None:
    """Make Triton's interpreter about twice as fast for small shapes. Call it once per process."""
    from triton.runtime import interpreter

    if hasattr(interpreter, "_patch_lang"):
        interpreter._patch_lang = _once_per_module(interpreter._patch_lang)
    if hasattr(interpreter, "_get_np_dtype"):
        interpreter._get_np_dtype = _cached_by_name(interpreter._get_np_dtype)
    builder = getattr(interpreter, "interpreter_builder", None)
    if hasattr(getattr(builder, "options", None), "sanitize_overflow"):
        # Compiled kernels do not check their integers either. The check repeats each operation in 64 bits.
        builder.options = replace(builder.options, sanitize_overflow=False)


def _once_per_module(patch: Callable[[FunctionType], object]) -> Callable[[FunctionType], object]:
    """Replace the operations of `triton.language` once for each module that has kernels, and keep them replaced.

    The interpreter does it at every launch, and again at every call of one kernel function by another. Here no code in
    this process needs the operations of the compiler.
    """
    patched: set[str] = set()

    def patch_once(function: FunctionType) -> object:
        if function.__module__ not in patched:
            patch(function)
            patched.add(function.__module__)
        return SimpleNamespace(restore=lambda: None)

    return patch_once


def _cached_by_name(numpy_type: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Remember the numpy type of each type of Triton's. Types of pointers have no hash, but a name."""
    found: dict[str, Any] = {}

    def cached(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in found:
            found[name] = numpy_type(dtype)
        return found[name]

    return cached
