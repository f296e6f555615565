"""How a model writes: token by token or with canvases, by measurement, and what a request requires."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from gesso.engine.decoding import Decoding, choose_decoding, measure

import gesso
from gesso.engine import decoding
from gesso.errors import InputError
from gesso.settings import PRESETS, Diffusion

BY_TOKEN = Decoding(by_token=True)
SHORT = Decoding(canvas_length=64, rates={1: 1.0, 64: 2.0})


def settings(
    how: Decoding, decode: Any = None, preset: Any = None, needs_canvas: bool = False, **given: Any
) -> Diffusion:
    return how.settings(Diffusion(), decode, preset, given, needs_canvas=needs_canvas)  # type: ignore[arg-type]


def test_the_faster_way_to_write_is_chosen() -> None:
    def machine(times: Mapping[tuple[int, bool], float]) -> dict[int, float]:
        return measure(lambda tokens, causal: times[tokens, causal], 256)

    cpu = machine({(1, True): 0.15, (16, False): 0.9, (64, False): 3.0})
    assert max(cpu, key=cpu.__getitem__) == 1 and 256 not in cpu, "256 tokens cannot win, so they are not measured"
    wide = machine({(1, True): 0.15, (16, False): 0.16, (64, False): 0.2, (256, False): 0.4})
    assert max(wide, key=wide.__getitem__) == 256
    middle = machine({(1, True): 0.15, (16, False): 0.2, (64, False): 0.3, (256, False): 2.0})
    assert max(middle, key=middle.__getitem__) == 64


def test_canvases_longer_than_the_models_are_not_considered() -> None:
    assert set(measure(lambda tokens, causal: 0.1, 64)) == {1, 16, 64}


def test_small_models_are_not_measured_and_keep_their_canvases(
    tiny: gesso.Gesso, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "measure", lambda *_: pytest.fail("measured"))
    assert tiny.decoding == Decoding()
    assert choose_decoding("auto", tiny.engine.runner.backend, 256) == Decoding()
    assert choose_decoding("tokens", tiny.engine.runner.backend, 256).by_token


def test_a_large_model_on_a_cpu_is_measured(tiny: gesso.Gesso, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "LEAST_BYTES", 1)
    found = choose_decoding("auto", tiny.engine.runner.backend, 256)
    assert 1 in found.rates and all(rate > 0 for rate in found.rates.values())
    best = max(found.rates, key=lambda length: found.rates[length])
    assert (found.by_token, found.canvas_length) == ((True, None) if best == 1 else (False, best))
    assert "tokens/s" in found.summary


def test_open_requests_are_written_as_the_model_was_loaded_to() -> None:
    assert settings(BY_TOKEN).autoregressive
    assert settings(BY_TOKEN, preset="laptop").autoregressive
    drawn = settings(BY_TOKEN, greed=0.5, top_k=3, t_max=0.9, settle=1)
    assert drawn.autoregressive and (drawn.greed, drawn.top_k, drawn.t_max) == (0.5, 3, 0.9)
    assert settings(SHORT).canvas_length == settings(SHORT, preset="laptop").canvas_length == 64
    assert settings(Decoding()) == Diffusion() and settings(Decoding(), preset="laptop") == PRESETS["laptop"]


@pytest.mark.parametrize("how", [BY_TOKEN, SHORT])
def test_what_only_canvases_can_do_is_done_with_whole_canvases(how: Decoding) -> None:
    assert settings(how, needs_canvas=True) == Diffusion()
    assert settings(how, "canvas") == Diffusion()
    assert settings(how, preset="quality") == PRESETS["quality"]
    assert settings(how, preset=Diffusion(steps=9)) == Diffusion(steps=9)
    for given in ({"steps": 9}, {"canvas_length": 32}, {"entropy_bound": 0.3}, {"stopping": "fixed"}):
        assert settings(how, **given) == Diffusion(**given)  # type: ignore[arg-type]


def test_an_explicit_choice_wins_and_contradictions_are_rejected() -> None:
    assert settings(Decoding(), "tokens").autoregressive
    assert settings(BY_TOKEN, sampler="autoregressive").autoregressive
    for given in ({"sampler": "entropy-bound"}, {"steps": 9}):
        with pytest.raises(InputError, match="one of the two|must be 1"):
            settings(BY_TOKEN, "tokens", **given)
    with pytest.raises(InputError, match="decode must be one of auto, canvas, tokens"):
        settings(BY_TOKEN, "letters")


def test_requests_of_a_model_that_writes_token_by_token(tiny_directory: Path) -> None:
    g = gesso.load(tiny_directory, device="cpu", decode="tokens", max_batch=1)
    prompt = g.tokenizer.encode("def f(")
    plain = g.request(prompt, seed=1)
    assert plain.diffusion.autoregressive
    assert g.generate(prompt, seed=1, max_new_tokens=5).usage.canvases == 5
    assert not g.request(prompt, seed=1, pins={3: 7}).diffusion.autoregressive
    assert not g.request(prompt, seed=1, regex="[a-z]+").diffusion.autoregressive
    filled = g.infill("def f(", "):", max_new_tokens=4, steps=2, seed=1)
    assert filled.usage.denoising_steps > filled.usage.canvases, "canvases of several steps"
    with pytest.raises(InputError, match="decode must be"):
        gesso.load(tiny_directory, decode="letters")  # type: ignore[arg-type]


def test_the_measurement_leaves_the_engine_as_it_was(tiny_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = gesso.load(tiny_directory, device="cpu").generate("def", steps=3, max_new_tokens=6, seed=2).tokens
    monkeypatch.setattr(decoding, "LEAST_BYTES", 1)
    g = gesso.load(tiny_directory, device="cpu")
    assert g.decoding.rates and not g.engine.cache.lengths
    assert g.generate("def", steps=3, max_new_tokens=6, seed=2).tokens == expected
    assert torch.get_num_threads() == 1
