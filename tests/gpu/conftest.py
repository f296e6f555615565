"""Fixtures of the GPU suite. They import only pytest, torch and gesso: a GPU machine may lack other packages."""

import pytest
import torch

import gesso
from gesso.checkpoint import write
from gesso.model.config import Config
from gesso.model.init import begin
from gesso.model.transformer import DiffusionGemma
from tests import tiny as tiny_checkpoint
from tests.gpu.device import DEVICE, DRY_RUN, EXPERTS


@pytest.fixture(scope="session", autouse=True)
def gpu():
    if not DRY_RUN and not torch.cuda.is_available():
        pytest.fail("these tests need an NVIDIA GPU; GESSO_GPU_DRY_RUN=1 checks their logic on a CPU")


@pytest.fixture(scope="session")
def mini():
    """The bundled model gesso-mini, in bfloat16 on a GPU."""
    return gesso.load(device=DEVICE)


# Suitable for the kernels of every precision.
WIDTHS = {"hidden_size": 256, "intermediate_size": 128, "moe_intermediate_size": 64, "num_experts": EXPERTS}


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory):
    """The tiny checkpoint with more experts than the tests on a CPU have time for."""
    return tiny_checkpoint.make(tmp_path_factory.mktemp("tiny") / "model", num_experts=EXPERTS)


@pytest.fixture(scope="session")
def packable_directory(tmp_path_factory):
    """A tiny checkpoint that can be quantized to every format."""
    return tiny_checkpoint.make(tmp_path_factory.mktemp("packable") / "model", **WIDTHS)


@pytest.fixture(scope="session")
def untrained_directory(tmp_path_factory):
    """The same shape with the initial weights of training, which do not amplify rounding errors."""
    text = tiny_checkpoint.CONFIG["text_config"] | WIDTHS
    model = DiffusionGemma(Config.from_dict(tiny_checkpoint.CONFIG | {"text_config": text}))
    begin(model, seed=0)
    target = tmp_path_factory.mktemp("untrained") / "model"
    files = {"tokenizer.json": tiny_checkpoint.tokenizer_json(), "generation_config.json": "{}\n"}
    write.save(model, target, files=files)
    return target
