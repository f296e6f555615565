"""Stages: work that several threads do one after another within one kernel.

A stage has parts. Threads take parts until none is left, and then wait until all are done. The number of threads does
not matter: a thread that arrives late finds no part left and goes on. A thread reads the results of earlier stages only
while it holds a part, because the next stages cannot begin before that part is done, and nothing overwrites them.

A stage has two counters of 64 bits: the parts that were taken, and those that are done. They are zeros at the start.
"""

import os

from llvmlite import ir
from numba import types
from numba.core import cgutils

from gesso.backends.cpu.kernels.compiling import inlined
from gesso.backends.cpu.kernels.instructions import INT, LONG
from gesso.backends.cpu.kernels.vectors import operation, take

STAGE_BYTES = 64  # of the counters of a stage: a cache line
SPINS = 10_000  # before a waiting thread offers its core to others: they may be more than the cores


@operation(types.void, types.intp)
def _increment(builder, address):
    """Add one to the integer at an address. A thread that sees it also sees all that was written before."""
    pointer = builder.inttoptr(address, LONG.as_pointer())
    builder.atomic_rmw("add", pointer, ir.Constant(LONG, 1), "release")


@operation(types.int64, types.intp)
def _seen(builder, address):
    return builder.load_atomic(builder.inttoptr(address, LONG.as_pointer()), "acquire", 8)


@operation(types.void)
def _yield(builder):
    if os.name == "posix":
        builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(INT, []), "sched_yield"), [])


@inlined
def next_part(stage):
    """Return the number of a part that no other thread has. The stage has none left if there is no such part."""
    return take(stage)


@inlined
def finish_part(stage):
    _increment(stage + 8)


@inlined
def wait(stage, parts):
    """Return when all parts are done."""
    spins = 0
    while _seen(stage + 8) < parts:
        spins += 1
        if spins % SPINS == 0:
            _yield()
