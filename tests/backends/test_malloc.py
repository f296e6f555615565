"""Freed memory stays in the process, so that a step does not fault its pages in again."""

import platform
import resource

import pytest
import torch

from gesso.backends.malloc import keep_freed_memory

PAGES = 12 * 2**20 // 4096


def faults_of_a_step() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    logits = [torch.ones(2**20) for _ in range(3)]  # 4 MB each
    del logits
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_a_step_does_not_fault_in_the_memory_of_the_step_before():
    keep_freed_memory()
    # The least of several: the system may take back pages at any time.
    assert min(faults_of_a_step() for _ in range(20)) < PAGES // 10
