"""How a model writes: with canvases or by token, by measurement, and what a request requires."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import gesso
from gesso import PRESETS
from gesso.backends.torch import TorchBackend
from gesso.checkpoint.generation import write_diffusion
from gesso.cli.options import LoadOptions
from gesso.engine.ways import Writing
from gesso.engine.writing import choose_writing, measure
from gesso.errors import InputError
from gesso.settings import BY_TOKEN, Diffusion, WriteName, choose
from tests.engine.models import with_engine
from tests.tiny import make
from tests.watched import Watched

TOKENS, VERIFIED = (choose(Diffusion(), write=write) for write in BY_TOKEN)
SHORT = Writing(canvas_length=64, rates={1: 1.0, 64: 2.0})


def settings(how: Writing, preset: Any = None, needs_canvas: bool = False, **given: Any) -> Diffusion:
    return how.settings(Diffusion(), preset, given, needs_canvas=needs_canvas)  # type: ignore[arg-type]


def chosen(
    g: gesso.Gesso,
    write: WriteName | None = None,
    default: Diffusion = Diffusion(),  # noqa: B008
    **limits: int,
) -> Writing:
    return choose_writing(write, default, g.engine.runner.backend, 256, **limits)


@pytest.fixture
def unmeasured(tiny: gesso.Gesso) -> gesso.Gesso:
    """The tiny model with a backend that must not run."""

    def fail(*_: Any) -> None:
        pytest.fail("measured")

    return with_engine(tiny, backend=Watched(TorchBackend(tiny.model), run=fail))


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


def test_small_models_are_not_measured_and_keep_their_canvases(unmeasured: gesso.Gesso) -> None:
    assert unmeasured.writing == chosen(unmeasured) == Writing()


def test_load_and_then_the_checkpoint_decide_before_any_measurement(unmeasured: gesso.Gesso) -> None:
    assert chosen(unmeasured, default=VERIFIED, least_bytes=1).write == "verified"
    for write in ("canvas", "tokens", "verified"):
        assert chosen(unmeasured, write, default=VERIFIED, least_bytes=1).write == write


def test_a_large_model_on_a_cpu_is_measured(tiny: gesso.Gesso) -> None:
    found = chosen(tiny, least_bytes=1)
    assert 1 in found.rates and all(rate > 0 for rate in found.rates.values())
    best = max(found.rates, key=lambda length: found.rates[length])
    assert (found.write, found.canvas_length) == (("tokens", None) if best == 1 else ("canvas", best))
    assert "tokens/s" in found.summary


@pytest.mark.parametrize("write", BY_TOKEN)
def test_open_requests_are_written_as_the_model_was_loaded_to(write: WriteName) -> None:
    how = Writing(write=write)
    assert settings(how) == settings(how, preset="laptop") == choose(Diffusion(), write=write)
    drawn = settings(how, greed=0.5, top_k=3, t_max=0.9, settle=1)
    assert (drawn.write, drawn.greed, drawn.top_k, drawn.t_max) == (write, 0.5, 3, 0.9)


def test_open_requests_have_the_canvases_that_were_measured() -> None:
    assert settings(SHORT).canvas_length == settings(SHORT, preset="laptop").canvas_length == 64
    assert settings(Writing()) == Diffusion() and settings(Writing(), preset="laptop") == PRESETS["laptop"]


@pytest.mark.parametrize("how", [*(Writing(write=write) for write in BY_TOKEN), SHORT])
def test_what_only_canvases_can_do_is_done_with_whole_canvases(how: Writing) -> None:
    assert settings(how, needs_canvas=True) == Diffusion()
    assert settings(how, write="canvas") == Diffusion()
    assert settings(how, preset="quality") == PRESETS["quality"]
    assert settings(how, preset=Diffusion(steps=9)) == Diffusion(steps=9)
    for given in ({"steps": 9}, {"canvas_length": 32}, {"entropy_bound": 0.3}, {"stopping": "fixed"}):
        assert settings(how, **given) == Diffusion(**given)  # type: ignore[arg-type]


def test_an_explicit_choice_wins_and_contradictions_are_rejected() -> None:
    assert settings(Writing(), write="tokens") == settings(Writing(write="verified"), write="tokens") == TOKENS
    assert settings(Writing(), preset=VERIFIED) == VERIFIED
    for given in ({"sampler": lambda *_: None}, {"steps": 9}, {"settle": 1}, {"stopping": "stable"}):
        with pytest.raises(InputError, match="must be .* with write=tokens"):
            settings(Writing(), write="tokens", **given)
    with pytest.raises(InputError, match="write must be one of canvas, tokens, verified"):
        settings(Writing(), write="letters")


def test_another_way_of_writing_replaces_the_settings_that_are_for_canvases_only() -> None:
    quality = PRESETS["quality"]
    assert choose(quality, write="tokens") == Diffusion(write="tokens", **BY_TOKEN["tokens"], entropy_bound=0.05,
                                                        stability=2, confidence=0.002)  # fmt: skip
    assert choose(VERIFIED, write="canvas") == Diffusion()
    assert choose(VERIFIED, write="tokens") == TOKENS
    assert choose(VERIFIED, canvas_length=8).verified


def test_requests_of_a_model_that_writes_token_by_token(tiny_directory: Path) -> None:
    g = gesso.load(tiny_directory, device="cpu", write="tokens", max_batch=1)
    prompt = g.tokenizer.encode("def f(")
    assert g.writing == Writing(write="tokens", why="as requested")
    assert g.request(prompt, seed=1).diffusion.token_by_token
    assert g.generate(prompt, seed=1, max_new_tokens=5).usage.canvases == 5
    assert not g.request(prompt, seed=1, pins={3: 7}).diffusion.by_token
    assert not g.request(prompt, seed=1, regex="[a-z]+").diffusion.by_token
    assert g.request(prompt, seed=1, regex="[a-z]+", write="tokens").diffusion.token_by_token
    filled = g.infill("def f(", "):", max_new_tokens=4, steps=2, seed=1)
    assert filled.usage.denoising_steps > filled.usage.canvases, "canvases of several steps"
    with pytest.raises(InputError, match="write must be"):
        gesso.load(tiny_directory, write="letters")  # type: ignore[arg-type]


def test_only_generate_and_chat_measure_and_other_commands_write_as_the_checkpoint_says(
    tmp_path: Path,
) -> None:
    directory = make(tmp_path / "model")
    options = LoadOptions(model=str(directory), device="cpu")
    # A model as small as this one is not measured either, but for a reason of its own.
    assert options.load(max_batch=1).writing == Writing(write="canvas", why="as requested")
    assert options.load(max_batch=1, write=None).writing == Writing(write="canvas", why="the default")
    write_diffusion(directory, VERIFIED)
    assert options.load(max_batch=1).writing.write == "verified"


def test_a_checkpoint_that_writes_verified_text_still_takes_constraints_and_pins(tmp_path: Path) -> None:
    directory = make(tmp_path / "model")
    write_diffusion(directory, VERIFIED)
    g = gesso.load(directory, device="cpu", max_batch=1)
    assert g.writing.write == "verified" and g.request("abc").diffusion == VERIFIED
    assert g.request("abc", regex="[a-z]+").diffusion == g.request("abc", pins={0: 200}).diffusion == Diffusion()
    texts = {g.generate("abc", seed=1, max_new_tokens=6, write=write).tokens for write in ("tokens", "verified")}
    assert texts == {g.generate("abc", seed=1, max_new_tokens=6).tokens}
    filled = g.infill("def f(", "):", max_new_tokens=4, seed=1)
    assert filled.usage.denoising_steps > filled.usage.canvases, "a hole is filled with a canvas"


def test_the_measurement_leaves_the_engine_as_it_was(tiny: gesso.Gesso) -> None:
    expected = with_engine(tiny).generate("def", steps=3, max_new_tokens=6, seed=2).tokens
    g = with_engine(tiny)
    assert chosen(g, least_bytes=1).rates and not g.engine.cache.lengths
    assert g.generate("def", steps=3, max_new_tokens=6, seed=2).tokens == expected
    assert torch.get_num_threads() == 1
