"""Images in prompts: the same text in any batch and with any cache, one vision pass per image, and what is refused.

The window of the model is shorter than the larger image.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gesso import Done, Draft, Image
from gesso.backends.torch import TorchBackend, summarize
from gesso.diffusion.canvas import Process
from gesso.diffusion.noise import HashSource
from gesso.engine.engine import Engine
from gesso.engine.events import Event, Failed
from gesso.engine.prefix_files import PrefixFiles
from gesso.engine.request import Request, Score
from gesso.engine.seen import Seen
from gesso.errors import InputError
from gesso.images.tokens import image_tokens
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma
from gesso.model.vision import Vision
from gesso.settings import BY_TOKEN, Diffusion, choose
from tests.backends.passes import CapturesPlainly
from tests.tiny import CONFIG, IMAGES, VOCABULARY, randomise
from tests.watched import Watched

PATCH, POOL = 4, 3
SMALL = Diffusion(canvas_length=8, steps=4, entropy_bound=2.0, confidence=0.5)
OPTIONS = {"max_batch": 4, "piece": 8, "prefill": 24}


def picture(seed: int, rows: int = 3, columns: int = 4) -> Image:
    """Return random patches for rows * columns soft tokens."""
    shape = rows * columns * POOL**2, 3 * PATCH**2
    patches = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return Image(patches=patches, rows=rows * POOL, columns=columns * POOL, tokens=rows * columns)


CAT, DOG, LARGE = picture(1), picture(2), picture(3, 5, 5)


def soft(image: Image) -> tuple[int, ...]:
    return image_tokens(image.digest, image.tokens)


def asking(*parts: int | Image, **changes: Any) -> Request:
    """Return a request whose prompt has these texts of so many tokens, and these images."""
    prompt: list[int] = [2]
    for part in parts:
        prompt += [130 + i * 7 % 190 for i in range(part)] if isinstance(part, int) else soft(part)
    images = tuple(dict.fromkeys(part for part in parts if isinstance(part, Image)))
    given = {"max_new_tokens": 16, "diffusion": SMALL, "seed": 5} | changes
    return Request(prompt=tuple(prompt), images=images, **given)


QUESTION = asking(10, CAT, 4, LARGE, 11)
OTHERS = [
    asking(3, seed=1),
    asking(10, DOG, 4, seed=2),
    asking(40, seed=3, max_new_tokens=24),
    asking(10, CAT, 20, DOG, CAT, 1, seed=4),
]


@pytest.fixture(scope="module")
def model() -> DiffusionGemma:
    text = CONFIG["text_config"] | {"sliding_window": 24, "use_bidirectional_attention": "vision"}  # type: ignore[operator]
    config = Config.from_dict({**CONFIG, **IMAGES, "text_config": text})
    model = DiffusionGemma(config)
    model.vision = Vision(config.vision, config.hidden_size)
    randomise(model, 0, std=0.2)
    with torch.no_grad():
        model.decoder.norm.weight.fill_(2.0)
    return model


def new(model: DiffusionGemma, **changes: Any) -> Engine:
    return Engine(model, lambda tokens: " ".join(map(str, tokens)), **OPTIONS | changes)


def looking(model: DiffusionGemma, **changes: Any) -> tuple[Engine, list[Image]]:
    """Return an engine, and the images of its vision passes, which are added while it runs."""
    looks: list[Image] = []

    def see(see: Callable[[Image], torch.Tensor], image: Image) -> torch.Tensor:
        looks.append(image)
        return see(image)

    return new(model, backend=Watched(TorchBackend(model), see=see), **changes), looks


def last_events(engine: Engine, *requests: Request) -> list[Event]:
    ids, last = [engine.submit(each) for each in requests], {}
    while engine.busy:
        last |= {event.request_id: event for event in engine.step()}
    return [last[i] for i in ids]


def texts(engine: Engine, *requests: Request) -> list[tuple[int, ...]]:
    found = []
    for event in last_events(engine, *requests):
        if isinstance(event, Failed):
            raise event.error
        assert isinstance(event, Done)
        found.append(event.result.tokens)
    return found


def cached(engine: Engine, request: Request) -> int:
    """Run a request and return how many of its tokens it reused."""
    (event,) = last_events(engine, request)
    assert isinstance(event, Done)
    return event.result.usage.cached_tokens


@pytest.fixture(scope="module")
def alone(model: DiffusionGemma) -> Callable[[Request], tuple[int, ...]]:
    """Return a function that runs a request on an engine of its own."""
    return lambda request: texts(new(model), request)[0]


# --- same seed, same text -----------------------------------------------------------------------------------------


@torch.no_grad()
def test_generation_with_images_equals_a_plain_loop_over_the_model(model, alone):
    request, length = QUESTION, len(QUESTION.prompt)
    cache, at = model.new_cache(1, 200), 0
    for end, image in ((8, None), (11, None), (23, CAT), (27, None), (52, LARGE), (60, None), (length, None)):
        ids_S = torch.tensor(request.prompt[at:end] if image is None else [0] * image.tokens)
        seen = image and model.see(torch.from_numpy(image.patches), image.rows, image.columns)
        model.encode_segment(ids_S, cache, 0, image_SH=seen)
        at = end
    process = Process(
        settings=SMALL, source=HashSource(), seed=5, vocab_size=VOCABULARY, eos=frozenset(), device=model.device
    )
    written: list[int] = []
    for index in range(2):
        canvas = process.blank(index, 8, {})
        while canvas.reason is None:
            hidden_CH = model.denoise_canvas(canvas.tokens_C, cache, 0, soft_CH=canvas.soft_CH)
            logits_CV = model.logits(hidden_CH) / process.temperature(canvas)
            canvas = process.advance(canvas, summarize(model, logits_CV, process.candidates(canvas, logits_CV)))
        model.encode_segment(canvas.result_C, cache, 0)
        written += canvas.result_C.tolist()
    assert alone(request) == tuple(written)
    assert len({alone(asking(10, image, 4)) for image in (CAT, DOG)}) == 2, "the text depends on the image"


def test_same_seed_same_text_with_images_in_any_batch(model, alone):
    requests = [QUESTION, *OTHERS]
    expected = [alone(each) for each in requests]
    assert texts(new(model), *requests) == expected
    assert texts(new(model, prefill=200), *reversed(requests)) == expected[::-1]


def test_same_seed_same_text_with_images_and_any_cache_contents(model, alone):
    """After prompts that share the text, an image or a part of it with this one, in the only row."""
    expected, engine = alone(QUESTION), new(model, max_batch=1)
    for other in (QUESTION, asking(10, DOG, 4, LARGE, 11), asking(10, CAT, 4, DOG, 3), asking(30), asking(10, CAT, 9)):
        texts(engine, other)
        assert texts(engine, QUESTION) == [expected]


def test_a_run_with_images_can_be_resumed_from_any_of_its_drafts(model, alone):
    expected, engine = alone(QUESTION), new(model)
    engine.submit(QUESTION)
    drafts = [event for _ in iter(lambda: engine.busy, False) for event in engine.step() if isinstance(event, Draft)]
    for draft in drafts[1::2]:
        if draft.canvas.reason is None:
            assert alone(replace(QUESTION, resume=draft)) == expected


@pytest.mark.parametrize("write", BY_TOKEN)
def test_token_by_token_decoding_with_images_is_the_same_in_any_batch(model, alone, write):
    one_by_one = choose(Diffusion(), write="tokens", t_max=2.0)
    drafted = choose(Diffusion(), write="verified", t_max=2.0, canvas_length=4)
    settings = drafted if write == "verified" else one_by_one
    wanted = [replace(each, diffusion=settings, max_new_tokens=10) for each in (QUESTION, asking(10, CAT, 1, seed=3))]
    expected = [alone(each) for each in wanted]
    engine = new(model)
    assert texts(engine, *wanted, *OTHERS)[:2] == expected
    assert texts(engine, *wanted) == expected, "with a warm cache"
    if write == "verified":
        assert [alone(replace(each, diffusion=one_by_one)) for each in wanted] == expected


def test_passes_with_images_are_not_captured_and_canvases_beside_them_are(model, alone):
    expected = [alone(each) for each in (QUESTION, *OTHERS[:2])]
    for served in (False, True):
        backend = CapturesPlainly(model)
        engine = new(model, backend=backend)
        if served:
            backend.expect(4, 8, engine.scheduler.prefill)
            backend.compile_expected(engine.cache)
            while engine.captures_left:
                engine.capture_next()
        assert texts(engine, QUESTION, *OTHERS[:2]) == expected
        replayed, run = [], backend.run
        replay = backend.replay

        def note_replay(work: Any, cache: Any, replay: Any = replay, replayed: list[Any] = replayed) -> Any:
            found = replay(work, cache)
            replayed.extend(work if found is not None else ())
            return found

        def note_run(pieces: Any, cache: Any, run: Any = run) -> Any:
            assert all(piece.causal for piece in pieces), "a canvas runs in a captured pass"
            return run(pieces, cache)

        engine = new(model, backend=backend)
        engine.submit(asking(3, seed=1, max_new_tokens=32))
        while not engine.scheduler.running:
            engine.step()
        backend.replay, backend.run = note_replay, note_run  # type: ignore[method-assign]
        engine.submit(asking(2, DOG, 2))
        while engine.busy:
            engine.step()
        kinds = {kind for item in replayed for _, kind in item.pieces}
        assert "canvas" in kinds and "image" not in kinds


# --- what is kept -------------------------------------------------------------------------------------------------


def test_a_second_question_about_an_image_takes_no_vision_pass(model):
    engine, looks = looking(model, max_batch=1)
    texts(engine, asking(10, CAT, 4))
    assert looks == [CAT]
    assert cached(engine, asking(10, CAT, 9)) == 11 + CAT.tokens, "the row has the image"
    texts(engine, asking(30), asking(3, CAT, 2), asking(5, picture(1), 2))
    assert looks == [CAT], "the features outlive the row, also for an equal image"


def test_an_image_twice_in_a_prompt_is_seen_once(model):
    engine, looks = looking(model)
    texts(engine, asking(3, DOG, DOG, 2, DOG, 1))
    assert looks == [DOG]


def test_the_least_recently_used_features_are_dropped_beyond_the_limit():
    calls: list[Image] = []

    def see(image: Image) -> torch.Tensor:
        calls.append(image)
        return torch.zeros(image.tokens, 4)

    seen = Seen(see, torch.device("cpu"), limit=2 * CAT.tokens * 16)
    for image in (CAT, DOG, CAT, picture(4), CAT, DOG):
        assert seen.features(image).shape == (image.tokens, 4)
    assert [image.digest for image in calls] == [each.digest for each in (CAT, DOG, picture(4), DOG)]
    assert seen.nbytes == seen.limit
    assert seen.features(LARGE).shape == (LARGE.tokens, 4) and not seen.held, "larger than the limit"


def test_dropped_features_change_no_text(model, alone):
    engine = new(model, max_batch=1)
    engine.runner.seen.limit = 0
    for _ in range(2):
        texts(engine, asking(3))
        assert texts(engine, QUESTION) == [alone(QUESTION)]


def test_a_prompt_with_another_image_shares_only_the_text_before_it(model):
    # A text without an image is not cut at 11.
    for other, shared in ((asking(10, DOG, 30), 11), (asking(10, CAT, 20), 11 + CAT.tokens + 16), (asking(40), 8)):
        engine = new(model)
        texts(engine, asking(10, CAT, 30))
        assert cached(engine, other) == shared


def test_prompts_with_images_are_stored_piece_by_piece(model, alone, tmp_path: Path):
    """Short pieces, of which several would fit into one pass, are stored, too."""
    wanted = asking(2, CAT, 1, LARGE, 1, DOG, 10)

    def engine() -> Engine:
        found = new(model, prefill=100)
        found.store_prefixes(PrefixFiles(tmp_path, "a"))
        return found

    assert texts(engine(), wanted) == [alone(wanted)]
    assert len(list(tmp_path.iterdir())) == 7
    (event,) = last_events(engine(), wanted)
    assert isinstance(event, Done) and event.result.tokens == alone(wanted)
    assert event.result.usage.cached_tokens == len(wanted.prompt) - 2
    other = asking(2, CAT, 1, DOG, 5)
    (event,) = last_events(engine(), other)
    assert isinstance(event, Done) and event.result.tokens == alone(other)
    assert event.result.usage.cached_tokens == 3 + CAT.tokens + 1


# --- errors -------------------------------------------------------------------------------------------------------


def test_an_image_that_does_not_fit_in_memory_fails_its_request_alone(model, alone):
    def full(see: Callable[[Image], torch.Tensor], image: Image) -> torch.Tensor:
        if image.digest == DOG.digest:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return see(image)

    engine = new(model, backend=Watched(TorchBackend(model), see=full))
    events = last_events(engine, QUESTION, asking(3, DOG, 1), asking(6, seed=9))
    assert isinstance(events[1], Failed)
    for event, request in ((events[0], QUESTION), (events[2], asking(6, seed=9))):
        assert isinstance(event, Done) and event.result.tokens == alone(request)


def test_an_error_in_a_pass_changes_no_text_of_a_request_with_images(model, alone):
    expected, failing = alone(QUESTION), {4, 7}
    calls: list[int] = []

    def fail(run: Callable[..., Any], pieces: Any, cache: Any) -> Any:
        calls.append(len(pieces))
        if len(calls) in failing:
            run(pieces[:1], cache)
            raise RuntimeError("once")
        return run(pieces, cache)

    engine = new(model, backend=Watched(TorchBackend(model), run=fail))
    events = last_events(engine, QUESTION, *OTHERS[:2])
    assert len(calls) > max(failing) and isinstance(events[0], Done) and events[0].result.tokens == expected


def test_a_canvas_may_follow_an_image_directly(model: DiffusionGemma) -> None:
    engine, asked = new(model), asking(3, CAT)
    (expected,) = texts(engine, asked)
    assert texts(engine, asked, OTHERS[0], asking(3, DOG))[0] == expected, "with a warm cache, and beside others"
    assert texts(new(model), asking(3, DOG))[0] != expected


@pytest.mark.parametrize(
    "request_, words",
    [
        (replace(asking(3, CAT, 1), images=(DOG,)), "token 4 of the prompt belongs to an image that is not among"),
        (replace(asking(3, CAT, 1), images=()), "give the request its images"),
        (replace(asking(3, CAT, 1), prompt=(2, *soft(CAT)[:-1], 3)), "11 soft tokens at token 1, not all 12"),
        (replace(asking(3, CAT, 1), prompt=(2, *soft(CAT)[1:], 3)), "11 soft tokens at token 1, not all 12"),
        (asking(3, CAT, diffusion=Diffusion(write="tokens", **BY_TOKEN["tokens"])), "ends with an image"),
        (replace(asking(3, CAT, 1), prompt=(2, VOCABULARY, *soft(CAT), 3)), "outside the vocabulary"),
        (asking(3, replace(CAT, patches=CAT.patches[:, :12]), 1), "patches must be \\[108, 48\\]"),
        (asking(3, replace(CAT, rows=12, columns=9, tokens=11), 1), "11 tokens; .* 9 patches are a token"),
        (asking(3, picture(3, 1, 6), 1), "sides multiples of 3 and at most 16"),
        (Score(prompt=asking(3, CAT, 1).prompt, texts=((3,),)), "a prompt with images cannot be scored"),
    ],
)
def test_requests_whose_images_cannot_be_read_are_rejected(model, request_, words):
    with pytest.raises(InputError, match=words):
        new(model).submit(request_)


def test_a_model_that_cannot_see_rejects_images(model):
    with pytest.raises(InputError, match="its vocabulary has no tokens for them"):
        asking(3, CAT, 1).check(replace(model.config, eoi_token_id=VOCABULARY), 100)
    blind = DiffusionGemma(model.config)
    with pytest.raises(InputError, match="no vision tower: .* without text_only"):
        new(blind).submit(asking(3, CAT, 1))
