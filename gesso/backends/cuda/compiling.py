"""Compile the kernels of several passes at once, on all cores, before any of them runs.

A pass compiles its kernels one after another, each when it is first launched. Here passes are gone through without
launching anything, and Triton compiles in other threads meanwhile. It releases the interpreter for most of that time.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import triton
from triton.runtime.jit import JITFunction


@contextmanager
def compiling_only() -> Iterator[None]:
    """Compile each kernel that is called within, and launch none. Its results are then not computed."""
    functions: Any = JITFunction
    launch = functions.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return launch(self, *args, grid=grid, warmup=True, **options)

    functions.run = compile_only
    try:
        with ThreadPoolExecutor(os.cpu_count()) as threads, triton.AsyncCompileMode(threads):
            yield
    finally:
        functions.run = launch
