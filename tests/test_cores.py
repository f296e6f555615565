"""Threads: one per physical core that the process may use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gesso
from gesso.cores import threads_for, usable_cores, wait_without_spinning
from gesso.errors import InputError


def machine(directory: Path, siblings: dict[int, str], name: str = "core_cpus_list") -> Path:
    for number, shared in siblings.items():
        topology = directory / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / name).write_text(f"{shared}\n")
    return directory


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_two_threads_of_one_core_count_once(tmp_path: Path, name: str) -> None:
    system = machine(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, name)
    assert usable_cores(system, tmp_path, processors=range(4)) == 2
    assert usable_cores(system, tmp_path, processors={1, 3}) == 1, "the process is limited to one core"
    absent = usable_cores(tmp_path / "absent", tmp_path, processors={1, 3})
    assert absent == 2, "without a topology, processors are counted"


@pytest.mark.parametrize(("limit", "count"), [("max 100000", 4), ("150000 100000", 2), ("10000 100000", 1), ("", 4)])
def test_the_limit_of_a_container_counts(tmp_path: Path, limit: str, count: int) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    assert usable_cores(tmp_path, tmp_path, processors=range(4)) == count


def test_given_threads_win_and_a_lowered_number_is_kept() -> None:
    asked = ((None, 8), (None, 2), (6, 8), (6, 2))
    assert [threads_for(given, present, cores=4) for given, present in asked] == [4, 2, 6, 6]
    with pytest.raises(InputError, match="at least 1"):
        threads_for(0, 8)


def test_loading_sets_the_threads_of_torch(tiny_directory: Path) -> None:
    before = torch.get_num_threads()
    try:
        gesso.load(tiny_directory, device="cpu", threads=2)
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        gesso.load(tiny_directory, device="cpu")
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_threads_of_torch_wait_without_spinning() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment["OMP_DISPLAY_ENV"] = "verbose"
    code = "import contextlib, gesso\nwith contextlib.suppress(gesso.GessoError): gesso.load('/nowhere')"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    if "GOMP_SPINCOUNT" not in run.stderr:
        pytest.skip("the OpenMP library of this torch does not show its settings")
    assert "GOMP_SPINCOUNT = '0'" in run.stderr


def test_a_wait_policy_of_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, policy in ((None, "passive"), ("active", "active")):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if given is not None:
            monkeypatch.setenv("OMP_WAIT_POLICY", given)
        wait_without_spinning()
        assert os.environ["OMP_WAIT_POLICY"] == policy
