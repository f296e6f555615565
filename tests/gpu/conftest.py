"""Fixtures of the GPU suite. They need pytest, torch and gesso: the packages of `make test` may be missing here."""

import pytest
import torch

import gesso
from tests import tiny as tiny_checkpoint
from tests.gpu.device import DEVICE, DRY_RUN


@pytest.fixture(scope="session", autouse=True)
def gpu():
    if not DRY_RUN and not torch.cuda.is_available():
        pytest.fail("these tests need an NVIDIA GPU; GESSO_GPU_DRY_RUN=1 checks their logic on a CPU")


@pytest.fixture(scope="session")
def mini():
    """The model in the box, in bfloat16 on a GPU."""
    return gesso.load(device=DEVICE)


@pytest.fixture(scope="session")
def packable_directory(tmp_path_factory):
    """A tiny checkpoint whose widths suit the kernels of every precision."""
    widths = {"hidden_size": 256, "intermediate_size": 128, "moe_intermediate_size": 64}
    return tiny_checkpoint.make(tmp_path_factory.mktemp("packable") / "model", **widths)
