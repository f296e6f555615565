"""A backend from outside of the package: all that somebody has to write to support other hardware."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gesso.backends.torch import TorchBackend
from gesso.engine.engine import Engine
from gesso.model.modules import Linear
from tests.engine_requests import other_requests, request, result


class Int8Linear(Linear):
    """Weights as int8 with one scale per output; the product is computed in the dtype of the activations."""

    def __init__(self, base: Linear) -> None:
        nn.Module.__init__(self)
        weight_OI = base.weight.detach()
        self.scale_O1 = weight_OI.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        self.weight_OI = (weight_OI / self.scale_O1).round().to(torch.int8)

    def forward(self, x_TI: Tensor) -> Tensor:
        return F.linear(x_TI, self.weight_OI.to(x_TI.dtype) * self.scale_O1.to(x_TI.dtype))


class Int8Backend(TorchBackend):
    """Loads the weights of a model into its own format, and inherits the rest."""

    def __init__(self, model):
        super().__init__(copy.deepcopy(model, {id(model.config): model.config}))
        for parent in list(self.model.modules()):
            for name, child in parent.named_children():
                if type(child) is Linear:
                    setattr(parent, name, Int8Linear(child))


class LoggingBackend:
    """Implements the interface from scratch, by delegation."""

    captures = False

    def __init__(self, model):
        self.model, self.inner, self.passes = model, TorchBackend(model), []

    def run(self, pieces, cache):
        self.passes.append(len(pieces))
        return self.inner.run(pieces, cache)

    def see(self, image):
        return self.inner.see(image)

    def logits(self, hidden):
        return self.inner.logits(hidden)

    def logits_of(self, hidden_CH, tokens_U):
        return self.inner.logits_of(hidden_CH, tokens_U)

    def predict(self, hidden_TH, temperature_T, key_T2, lengths, soft=True, likely=False):
        return self.inner.predict(hidden_TH, temperature_T, key_T2, lengths, soft, likely)

    def draw_within(self, settings, hidden_CH, temperature, draws):
        return self.inner.draw_within(settings, hidden_CH, temperature, draws)

    def replay(self, work, cache):
        return None

    def expect(self, batch, canvas, prefill):
        pass

    def adapters_changed(self):
        self.inner.adapters_changed()

    def drop_captured(self):
        pass


def test_an_engine_on_another_backend_writes_the_same_text(tiny):
    backend = LoggingBackend(tiny.model)
    found = result(Engine(tiny.model, tiny.decode, backend=backend), request(seed=3))
    assert found.tokens == result(Engine(tiny.model, tiny.decode), request(seed=3)).tokens
    assert backend.passes


@pytest.fixture
def int8(tiny):
    return Int8Backend(tiny.model)


def test_an_int8_backend_is_near_the_plain_model_and_leaves_it_alone(tiny, int8):
    hidden = torch.randn(5, tiny.config.hidden_size)
    layer, plain = int8.model.decoder.layers[0].mlp, tiny.model.decoder.layers[0].mlp
    with torch.no_grad():
        error = (layer(hidden) - plain(hidden)).norm() / plain(hidden).norm()
    assert 1e-4 < error < 0.05
    assert type(plain.up_proj) is Linear


def test_same_seed_same_text_alone_and_in_a_batch_on_an_int8_backend(tiny, int8):
    alone = result(Engine(tiny.model, tiny.decode, backend=int8), request(seed=5))
    batch = Engine(tiny.model, tiny.decode, max_batch=8, backend=int8)
    for other in other_requests():
        batch.submit(other)
    assert result(batch, request(seed=5)).tokens == alone.tokens
