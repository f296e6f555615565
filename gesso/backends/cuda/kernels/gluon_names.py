"""Functions of Gluon whose names differ between versions of Triton, for the kernels of Hopper.

Newer names come first: a later version keeps an older name as a function that raises an error. Triton 3.6 has the older
names, 3.7 the first newer one, 3.9 all of them.
"""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, tma

# Wait for all threads of a program, or of one partition of its warps.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
# Fetch a tile of a tensor descriptor into shared memory, with the copy engine.
fetch_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
# Copy what pointers point to into shared memory, thread by thread.
copy_to_shared = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared
