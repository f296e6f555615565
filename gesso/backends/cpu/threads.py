"""Run a kernel on the threads of torch.

Kernels and torch's operations alternate many times per token. With threads of their own, the kernels would compete with
torch's, which keep spinning for a while after every operation. So a kernel runs in a parallel region of the OpenMP
library that torch uses. Where that library has no such entry point, a pool of Python threads runs the kernel; the
kernels release the interpreter lock.

A kernel is a C function of one address: that of its arguments, integers of 64 bits or the bits of float64 numbers. The
first of them is a counter from which threads take parts of the work, so any number of threads may run it, and a slow
core takes fewer parts.
"""

import ctypes
import struct
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def count(parts: int) -> int:
    """Return how many threads work that has so many parts should run on."""
    return max(1, min(torch.get_num_threads(), parts))


def run(kernel: Any, *arguments: int, threads: int) -> None:
    """Run a compiled kernel. It returns when all threads have."""
    block = (ctypes.c_int64 * (len(arguments) + 1))(0, *arguments)
    if threads == 1:
        _function(kernel)(block)
    elif parallel := _parallel():
        parallel(kernel.address, block, threads, 0)
    else:
        list(_pool(threads).map(_function(kernel), [block] * threads))


def bits(number: float) -> int:
    """Return a float64 as an argument of a kernel."""
    (integer,) = struct.unpack("q", struct.pack("d", number))
    return int(integer)


@cache
def _function(kernel: Any) -> Any:
    return _KERNEL(kernel.address)


@cache
def _parallel() -> Any:
    """Return `GOMP_parallel(function, argument, threads, flags)` of torch's OpenMP library, or None."""
    package = Path(torch.__file__).parent
    paths = [
        path
        for directory in (package / "lib", package.parent / "torch.libs")
        for name in ("libgomp*", "libomp*", "libiomp*")
        for path in sorted(directory.glob(name))
    ]
    for library in (*map(str, paths), None):  # None: whatever this process has loaded, in a torch that bundles none
        try:
            parallel = ctypes.CDLL(library).GOMP_parallel
        except (AttributeError, OSError, TypeError):  # TypeError: None is not accepted on Windows
            continue
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return parallel
    return None


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="gesso-cpu")
