"""Loading with experts in host memory: the same weights as without."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from gesso.checkpoint import random_weights
from gesso.checkpoint.load import load
from gesso.checkpoint.source import open_source
from gesso.checkpoint.streamed import PAGE, SLOTS, _Pinned, streamed
from gesso.errors import DoesNotFitError, InputError
from gesso.model.config import Config

CPU = torch.device("cpu")


@pytest.mark.parametrize("quantize", [None, "fp8"])
def test_a_slot_holds_the_weights_of_a_layer_after_its_copy(tiny_directory, quantize):
    source = open_source(tiny_directory)
    resident, model = (load(source, CPU, torch.bfloat16, quantize, stream=layers) for layers in ((), (0, 1)))
    expected, found = (dict([*each.named_parameters(), *each.named_buffers()]) for each in (resident, model))
    assert list(expected) == list(found), "streamed experts have the names of resident ones"
    for slot, host in streamed(model).copies():
        slot.copy_(host)
    for name, tensor in expected.items():
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name


def test_random_weights_do_not_depend_on_where_they_are():
    config = random_weights.config_of("mini")
    layers = range(SLOTS)
    resident, model = (random_weights.make(config, CPU, torch.bfloat16, None, stream=each) for each in ((), layers))
    for slot, host in streamed(model).copies():
        slot.copy_(host)
    assert all(map(torch.equal, resident.parameters(), model.parameters()))
    assert streamed(resident) is None


def test_a_model_with_a_separate_encoder_is_rejected(tiny_directory):
    raw = Config.from_directory(tiny_directory).raw
    untied = Config.from_dict({**raw, "tie_word_embeddings": False})
    with pytest.raises(InputError, match="separate weights for encoder and decoder"):
        random_weights.make(untied, CPU, torch.float32, None, stream=(0,))


@pytest.fixture
def replace_runtime(monkeypatch):
    """Return a function that takes what stands in for the CUDA runtime."""
    return lambda runtime: monkeypatch.setattr(torch.cuda, "cudart", runtime)  # the tests must pass without a GPU


def test_pinned_memory_is_registered_and_released(replace_runtime):
    """Simulates CUDA: the memory of each layer is registered in whole pages, and released with the model."""
    registered = {}

    class Runtime:
        def cudaHostRegister(self, address, size, flags):
            registered[address] = size
            return 0

        def cudaHostUnregister(self, address):
            del registered[address]

    replace_runtime(Runtime)
    buffers = [_Pinned(size, torch.device("cuda")) for size in (5, PAGE, 3 * PAGE + 1)]
    assert registered == {each.bytes.data_ptr(): pages * PAGE for each, pages in zip(buffers, (1, 1, 4), strict=True)}
    starts = sorted(registered)
    assert all(start % PAGE == 0 for start in starts)
    assert all(a + registered[a] <= b for a, b in pairwise(starts)), "no page is registered twice"
    del buffers
    assert not registered


def test_memory_that_cannot_be_pinned_is_reported(replace_runtime):
    replace_runtime(lambda: SimpleNamespace(cudaHostRegister=lambda *_: 2))
    with pytest.raises(DoesNotFitError, match=r"could not be pinned \(CUDA error 2\); free host memory"):
        _Pinned(PAGE, torch.device("cuda"))
