"""How kernels are compiled: functions that are inlined, and entry points that are C functions.

numba stores compiled entry points on disk. It compiles one again if its own file has changed, or a value that it is a
closure over. So every entry point is a closure over `VERSION`, which changes with any file of this package.
"""

import zlib
from pathlib import Path

from numba import cfunc, njit, types

from gesso.backends.cpu.kernels import vectors as vec

VERSION = zlib.crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))) | 1

inlined = njit(forceinline=True)
entry = cfunc(types.void(types.intp), cache=True)  # its argument is an address: see `gesso/backends/cpu/threads.py`


@inlined
def load_four(address):
    return vec.load_long(address), vec.load_long(address + 8), vec.load_long(address + 16), vec.load_long(address + 24)
