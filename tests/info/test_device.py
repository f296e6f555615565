"""GPU memory of a process, as `nvidia-smi` lists it."""

import os

import pytest
import torch

from gesso.info.device import process_memory


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put a program of this name and output on the path."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30 << 30, 40 << 30))

    def write(output: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\nprintf '{output}'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return write


def test_memory_of_other_processes_does_not_count(nvidia_smi):
    nvidia_smi(f"1, 700\\n{os.getpid()}, 300\\n")
    assert process_memory(torch.device("cuda")) == 300 << 20


@pytest.mark.parametrize("output", ["", "1, 700\\n", "1, [N/A]\\n", "no devices\\n"])
def test_all_memory_counts_if_the_driver_does_not_tell_processes_apart(nvidia_smi, output):
    nvidia_smi(output)
    assert process_memory(torch.device("cuda")) == 10 << 30
