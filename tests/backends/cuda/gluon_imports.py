"""Imports of Gluon modules, which each process does once."""

from collections.abc import Iterator
from contextlib import contextmanager

from gesso.backends.cuda.kernels import gluon_kernels


@contextmanager
def first_imports() -> Iterator[dict]:
    """Let every import of a Gluon module be the first, and yield the modules imported in the block by name.

    Other tests of the process may have imported some, or made them fail.
    """
    records = (gluon_kernels._modules, gluon_kernels._failures)
    before = [dict(record) for record in records]
    for record in records:
        record.clear()
    try:
        yield gluon_kernels._modules
    finally:
        for record, former in zip(records, before, strict=True):
            record.clear()
            record.update(former)
