"""GPU memory of a process, as `nvidia-smi` lists it, and its limit."""

import os

import pytest
import torch

from gesso.cards.named import CARDS
from gesso.cards.running import playing
from gesso.loading import choose_checkpoint
from gesso.memory import device
from gesso.memory.device import (
    SHARE,
    DeviceMemory,
    keep_within,
    memory_of,
    peak_bytes,
    process_memory,
    resident_bytes,
    restart_peak,
    used_bytes,
)
from gesso.memory.workspace import CONTEXT_BYTES

GPU = torch.device("cuda", 1)
SECOND = "second-uuid"  # of that GPU


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put a program of this name and output on the path."""

    def write(output: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\nprintf '{output}'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return write


@pytest.fixture
def second(driver):
    """The driver of a GPU of 40 GiB, 10 of which are in use; torch's allocator holds 100 MiB."""
    return driver(free=30 << 30, total=40 << 30, reserved=100 << 20, peak=250 << 20, uuid=SECOND)


def test_memory_of_other_processes_and_on_other_gpus_does_not_count(nvidia_smi, second):
    pid = os.getpid()
    nvidia_smi(f"GPU-first, {pid}, 9000\\nGPU-{SECOND}, 1, 700\\nGPU-{SECOND}, {pid}, 300\\nGPU-third, {pid}, 8000\\n")
    assert process_memory(GPU) == 300 << 20


@pytest.mark.parametrize("output", ["", f"GPU-{SECOND}, 1, 700\\n", f"GPU-{SECOND}, OURS, [N/A]\\n", "no devices\\n"])
def test_all_memory_counts_if_the_driver_does_not_tell_processes_apart(nvidia_smi, second, output):
    nvidia_smi(output.replace("OURS", str(os.getpid())))  # the name of a test must not depend on the process
    assert process_memory(GPU) == 10 << 30


def test_a_limit_is_that_of_the_process_with_its_context_and_kernels(nvidia_smi, second):
    nvidia_smi(f"GPU-{SECOND}, {os.getpid()}, 800\\n")
    keep_within(GPU, 20 << 30)
    nvidia_smi(f"GPU-{SECOND}, {os.getpid()}, 900\\n")  # kernels were loaded
    keep_within(GPU, 20 << 30)
    assert second.calls == [(((20 << 10) - outside) / (40 << 10), 1) for outside in (700, 800)]


def test_a_limit_has_an_estimate_of_the_context_if_the_driver_does_not_tell_processes_apart(nvidia_smi, second):
    nvidia_smi("")
    keep_within(GPU, 20 << 30)
    assert second.calls == [(((20 << 30) - CONTEXT_BYTES) / (40 << 30), 1)]


def test_a_limit_below_the_context_leaves_nothing(nvidia_smi, second):
    nvidia_smi(f"GPU-{SECOND}, {os.getpid()}, 800\\n")
    keep_within(GPU, 1 << 20)
    assert second.calls == ["cache", (0.0, 1)], "memory that torch has reserved is freed first"


def test_the_peak_counts_context_and_kernels_as_measured(nvidia_smi, second):
    nvidia_smi(f"GPU-{SECOND}, {os.getpid()}, 800\\n")  # 100 of them are torch's
    restart_peak(GPU)
    assert second.calls == ["cache", GPU]
    assert peak_bytes(GPU) == (250 + 700) << 20


def test_memory_of_the_process_is_resident_memory_on_a_cpu_and_that_of_torch_on_a_gpu(second):
    assert used_bytes(GPU) == 100 << 20
    assert 10**7 < used_bytes(torch.device("cpu")) <= resident_bytes()[1]


GB = 10**9


@pytest.fixture
def unified(driver, host):
    """A DGX Spark on which nothing runs."""
    host(128 * GB, 103 * GB)
    with playing(CARDS["dgx-spark"]):
        yield driver(free=103 * GB, total=128 * GB)


def test_the_page_cache_of_a_unified_memory_is_free(unified):
    """A download of 62 GB once left 41 of 103 GB by the count of the driver."""
    before = memory_of(GPU)
    unified.free -= 62 * GB
    assert memory_of(GPU) == before == DeviceMemory(128 * GB, 103 * GB, "cuda")


def test_experts_do_not_stream_from_a_unified_memory(unified):
    assert memory_of(GPU).host == 0


def test_the_alias_chooses_the_same_before_and_after_its_download(unified):
    before = choose_checkpoint(GPU, SHARE, None)
    unified.free -= 62 * GB
    assert choose_checkpoint(GPU, SHARE, None) == before
    assert before.quantize == "fp8" and "google" in before.name


def test_a_gpu_with_memory_of_its_own_counts_as_its_driver_does(driver, host):
    """A GB300 is next to a CPU with more memory, and has its own."""
    host(128 * GB, 103 * GB)
    driver(free=260 * GB, total=269 * GB)
    with playing(CARDS["dgx-station"]):
        assert memory_of(GPU) == DeviceMemory(269 * GB, 260 * GB, "cuda", 103 * GB)


def test_resident_memory_is_the_peak_where_the_system_has_no_status_file(tmp_path):
    status = tmp_path / "status"
    assert resident_bytes(status) == (device._most_resident(),) * 2
    assert resident_bytes(status)[0] > 10**7
    status.write_text("VmHWM:  30 kB\nVmRSS:  20 kB\n")
    assert resident_bytes(status) == (20_480, 30_720)
