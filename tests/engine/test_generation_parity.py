"""Whole texts equal those of `generate` in `transformers`, token for token, with the same random draws."""

import pytest
import torch
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

from gesso import Done, Image
from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.source import open_source
from gesso.engine.engine import Engine
from gesso.engine.request import Request
from gesso.images.tokens import image_tokens
from gesso.model.config import Config
from gesso.settings import Diffusion
from tests import oracle


class TorchDraws:
    """Draw from torch's global generator in the same order as the reference."""

    def at(self, seed, canvas, step, device):
        return self

    def tokens(self, length, vocab_size):
        return torch.randint(0, vocab_size, (1, length))[0]

    def keys(self, length):
        return None

    def candidates(self, logits_CV):
        return torch.multinomial(logits_CV.softmax(-1), num_samples=1).squeeze(-1)


def generate(model, prompt, settings, canvases, eos, images=()):
    engine = Engine(model, decode=str, source=TorchDraws())
    length = canvases * model.config.canvas_length
    request = Request(prompt=tuple(prompt), max_new_tokens=length, diffusion=settings, eos=eos, images=images)
    engine.submit(request)
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Done):
                return event.result
    raise AssertionError("the engine stopped without a result")


def reference_tokens(reference, prompt, settings, canvases, eos, **given):
    output = reference.generate(
        torch.tensor([prompt]),
        max_new_tokens=canvases * reference.config.canvas_length,
        max_denoising_steps=settings.steps,
        t_max=settings.t_max,
        t_min=settings.t_min,
        stability_threshold=settings.stability,
        confidence_threshold=settings.confidence,
        sampler_config=EntropyBoundSamplerConfig(settings.entropy_bound),
        eos_token_id=sorted(eos) or None,
        pad_token_id=0,
        **given,
    )
    tokens = output.sequences[0, len(prompt) :].tolist()
    ended = next((i for i, token in enumerate(tokens) if token in eos), len(tokens))
    return tokens[:ended], output


# The reference does not settle a prefix.
EARLY = Diffusion(settle=0, steps=24, confidence=1.5, stability=1, entropy_bound=4.0)
EARLY_PATIENT = Diffusion(settle=0, steps=24, confidence=2.5, stability=2, entropy_bound=8.0)
NEVER = Diffusion(settle=0, steps=10, confidence=1e-9)


# Every seed, that is every shape of the reference, and all settings. `test_parity.py` compares logits of more shapes.
@pytest.mark.parametrize(
    ("seed", "settings"),
    [(0, EARLY), (0, NEVER), (3, EARLY), (5, EARLY_PATIENT), (9, EARLY_PATIENT)],
    ids=["0-early", "0-never", "3-early", "5-early-patient", "9-early-patient"],
)
def test_texts_equal_the_reference_token_for_token(tmp_path, seed, settings):
    reference = oracle.checkpoint(tmp_path / "model", seed, near_identity=True)
    config = Config.from_directory(tmp_path / "model")
    model = load_weights(open_source(tmp_path / "model"), torch.device("cpu"), torch.float32)
    stopped_early = []
    for prompt_length, eos in ((1, frozenset()), (5, frozenset({1, 7})), (3 * config.sliding_window, frozenset())):
        prompt = torch.randint(0, config.vocab_size, (prompt_length,)).tolist()
        torch.manual_seed(seed)
        expected, output = reference_tokens(reference, prompt, settings, 3, eos)
        torch.manual_seed(seed)
        result = generate(model, prompt, settings, 3, eos)
        assert list(result.tokens) == expected
        assert result.finish_reason == ("length" if len(expected) == 3 * config.canvas_length else "stop")
        stopped_early.append(result.usage.denoising_steps < result.usage.canvases * settings.steps)
        if not eos:  # the reference reports passes only as tokens per pass, and counts every 0 as padding
            passes = sum(token != 0 for token in expected) / output.tokens_per_forward.item()
            assert result.usage.denoising_steps == pytest.approx(passes)
    assert any(stopped_early) == (settings is not NEVER), "otherwise the settings prove nothing about early stopping"


@pytest.mark.parametrize(
    ("seed", "settings"),
    [(3, EARLY), (9, EARLY), (10, NEVER)],  # together: both values of every flag
    ids=["3-early", "9-early", "10-never"],
)
def test_texts_after_images_equal_the_reference_token_for_token(tmp_path, seed, settings):
    reference = oracle.checkpoint(tmp_path / "model", seed, near_identity=True, config=oracle.seeing_config(seed))
    model = load_weights(open_source(tmp_path / "model"), torch.device("cpu"), torch.float32)
    config, vision = model.config, reference.config.vision_config
    # An image between texts, one at the beginning, and two, of which the second exceeds the window.
    for lengths, sizes in (((4, 3), [(2, 2)]), ((0, 2), [(1, 3)]), ((3, 2, 1), [(1, 1), (4, 5)])):
        pictures = [oracle.picture(vision, *size) for size in sizes]
        images = tuple(Image(pixels.numpy(), *size, len(pixels) // vision.pooling_kernel_size**2)
                       for _, (pixels, *size) in pictures)  # fmt: skip
        theirs, ours = [], []
        for length, image in zip(lengths, [*images, None], strict=True):
            text = torch.randint(6, config.vocab_size, (length,)).tolist()
            begin, end = ([config.boi_token_id], [config.eoi_token_id]) if image else ([], [])
            theirs += text + begin + [config.image_token_id] * (image.tokens if image else 0) + end
            ours += text + begin + list(image_tokens(image.digest, image.tokens) if image else ()) + end
        values, places = oracle.padded([given for given, _ in pictures])
        given = {"pixel_values": values, "image_position_ids": places}
        given["mm_token_type_ids"] = (torch.tensor([theirs]) == config.image_token_id).long()
        torch.manual_seed(seed)
        expected, _ = reference_tokens(reference, theirs, settings, 2, frozenset(), **given)
        torch.manual_seed(seed)
        assert list(generate(model, ours, settings, 2, frozenset(), images).tokens) == expected
