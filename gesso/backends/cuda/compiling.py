"""Compile the kernels of several passes at once, on all cores, before any of them runs.

A pass compiles its kernels one after another, each when it is first launched. Here passes are gone through without
launching anything, and Triton compiles in other threads meanwhile. It releases the interpreter for most of that time.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton.runtime.jit import JITFunction


class _Compilers(ThreadPoolExecutor):
    """Threads that compile kernels, and make them ready for a launch: the launcher is C code, which is compiled too."""

    def submit(self, compile: Callable[..., Any], /, *args: Any, **options: Any) -> "Future[Any]":
        def ready() -> Any:
            kernel = compile(*args, **options)
            kernel.run  # noqa: B018 - loads the kernel and its launcher
            return kernel

        return super().submit(ready)


@contextmanager
def compiling_only() -> Iterator[None]:
    """Compile each kernel that is called within, and launch none. Its results are then not computed.

    A kernel that does not compile raises its error later, when it is launched and its family is known. Triton 3.6 would
    also stay in this mode for ever.
    """
    functions: Any = JITFunction
    launch = functions.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return launch(self, *args, grid=grid, warmup=True, **options)

    functions.run = compile_only
    try:
        device = (torch.cuda.current_device(),)  # each thread has its own
        threads = _Compilers(os.cpu_count(), initializer=torch.cuda.set_device, initargs=device)
        with threads, triton.AsyncCompileMode(threads, ignore_errors=True):
            yield
    finally:
        functions.run = launch
