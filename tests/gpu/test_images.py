"""Images on a GPU: kernels against plain operations at real width, the tower, the same text in any batch, training."""

import json
from dataclasses import replace

import pytest
import torch

import gesso
from benchmarks.images import picture
from gesso.backends.base import Piece
from gesso.backends.cuda import CudaBackend
from gesso.backends.torch import TorchBackend
from gesso.engine.engine import Engine
from gesso.engine.request import Request
from gesso.images.tokens import image_tokens
from gesso.model.init import begin
from gesso.settings import Diffusion
from gesso.train.recipe import ModelSettings
from tests.engine_requests import finish, other_requests, result
from tests.gpu.device import DEVICE, DRY_RUN, EXPERTS
from tests.gpu.real_width import errors, make_model
from tests.gpu.test_training import assert_close, recipe, train
from tests.tiny import make

pytestmark = pytest.mark.gpu

# Text, an image that exceeds the window, text, a small image, and text.
LENGTHS = (300, 1120, 40, 70, 25) if not DRY_RUN else (20, 40, 8, 6, 5)


@pytest.fixture(scope="module")
def sees(tmp_path_factory):
    return make(tmp_path_factory.mktemp("sees") / "model", sees=True, num_experts=EXPERTS)


def asked(g, *images, seed=0):
    prompt = [2, *range(130, 150)]
    for image in images:
        ids = g.config.boi_token_id, *image_tokens(image.digest, image.tokens), g.config.eoi_token_id
        prompt += [*ids, *range(200, 210)]
    diffusion = Diffusion(steps=12, canvas_length=32, entropy_bound=2.0)
    return Request(prompt=tuple(prompt), images=images, max_new_tokens=64, diffusion=diffusion, seed=seed)


def outputs(backend, model):
    """Return the hidden states of texts, images and a canvas after them, text and images in one pass."""
    generator = torch.Generator().manual_seed(1)
    cache, pieces = model.new_cache(1, 4096), []
    for number, length in enumerate((*LENGTHS, 64)):
        ids = torch.randint(0, model.config.vocab_size, (length,), generator=generator).to(DEVICE)
        image = torch.randn(length, model.config.hidden_size, generator=generator).to(DEVICE, model.dtype)
        is_text, is_canvas = number % 2 == 0, number == len(LENGTHS)
        pieces.append(Piece(0, ids, causal=not is_canvas, image_SH=None if is_text or is_canvas else image))
    return [found.float() for found in backend.run(pieces, cache)]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_kernels_match_plain_operations_on_images(record_property, bidirectional):
    model = make_model(torch.bfloat16)
    model.config = replace(model.config, bidirectional_images=bidirectional)
    with torch.no_grad():
        apart = errors(outputs(CudaBackend(model), model), outputs(TorchBackend(model), model))
    record_property("median", float(apart.median()))
    assert apart.median() < 0.02


@torch.no_grad()
def test_the_tower_in_bfloat16_is_as_near_to_float32_as_its_rounding_allows(sees, record_property):
    narrow, wide = (gesso.load(sees, device=DEVICE, dtype=dtype) for dtype in ("bfloat16", "float32"))
    image = picture(narrow.config.vision, 4, 5, seed=1)
    mine, expected = (g.engine.runner.backend.see(image).float() for g in (narrow, wide))
    apart = ((mine - expected).norm(dim=-1) / expected.norm(dim=-1)).median()
    record_property("median", float(apart))
    assert apart < 0.03


def test_same_seed_same_text_with_images_alone_in_a_batch_and_from_the_cache(sees):
    g = gesso.load(sees, device=DEVICE, dtype="bfloat16")
    first, second = picture(g.config.vision, 5, 5, seed=1), picture(g.config.vision, 2, 3, seed=2)
    requests = [asked(g, first, seed=3), asked(g, second, first, seed=4), asked(g, first, second, seed=5)]
    last = asked(g, second, seed=6)
    requests.append(replace(last, prompt=last.prompt[:-11]))  # a canvas directly after the image
    alone = [result(Engine(g.model, g.decode), request).tokens for request in requests]
    assert len(set(alone)) == len(alone)
    batch = Engine(g.model, g.decode, max_batch=8)
    for _ in range(3):  # uncaptured, captured and replayed; later the prompts come from the cache
        ids = [batch.submit(each) for each in (*requests, *other_requests())]
        assert [events[-1].result.tokens for events in finish(batch, *ids)[: len(requests)]] == alone


def test_a_tower_in_host_memory_sees_the_same(sees):
    g = gesso.load(sees, device=DEVICE, dtype="bfloat16")
    image = picture(g.config.vision, 3, 4, seed=1)
    expected = g.engine.runner.backend.see(image)
    for parameter in g.model.vision.parameters():
        if parameter.ndim > 1:
            parameter.data = parameter.data.cpu()
    assert torch.equal(g.engine.runner.backend.see(image), expected)


@pytest.mark.parametrize("which", ["text", "vision", "all"])
def test_losses_of_rows_with_images_equal_those_of_the_cpu(sees, tmp_path, monkeypatch, which):
    from tests.images.files import drawing, encoded  # needs Pillow, which a GPU machine may lack

    lines = []
    for number, answer in enumerate(("one", "two", "three", "four")):
        (tmp_path / f"{number}.png").write_bytes(encoded(drawing(60, 40, seed=number), "PNG"))
        content = [{"type": "image", "image": f"{number}.png"}, {"type": "text", "text": "How many?"}]
        lines.append({"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]})
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    untrained = gesso.load(sees, device="cpu")
    begin(untrained.model, seed=0)  # weights that do not amplify rounding errors
    untrained.save(tmp_path / "model")
    model = ModelSettings(path=str(tmp_path / "model"), train=which)
    cpu, gpu = (
        train(replace(recipe(sees, rows, tmp_path / name), model=model), monkeypatch, device)
        for name, device in (("cpu", "cpu"), ("gpu", DEVICE))
    )
    assert_close(gpu, cpu, 1e-3)
