"""Verified decoding writes the text of `write="tokens"` in fewer passes."""

import json

import pytest
import torch

import gesso
from gesso import Done
from gesso.engine.engine import Engine
from gesso.errors import InputError
from tests.backends.passes import CapturesPlainly
from tests.engine.models import watched_engine

DRAWS = ({"greed": 1.0}, {"greed": 0.5, "t_max": 3.0}, {"t_max": 3.0, "top_p": 0.7, "top_k": 20})
PROMPTS = (230, 3, 33)  # the tiny model's window is shorter than the first


def long_prompt(length: int) -> list[int]:
    return [130 + i * 7 % 200 for i in range(length)]


def texts(engine: Engine, requests) -> list[tuple[int, ...]]:
    """Return the tokens that an engine writes for requests that it runs together."""
    ids = [engine.submit(each) for each in requests]
    found = {}
    while engine.busy:
        found |= {event.request_id: event.result for event in engine.step() if isinstance(event, Done)}
    return [found[i] for i in ids]


def requests(g, write: str, **options):
    return [
        g.request(long_prompt(length), write=write, max_new_tokens=14, seed=seed, **options)
        for seed, length in enumerate(PROMPTS)
    ]


@pytest.mark.parametrize(
    ("draws", "make"),
    [*((draws, None) for draws in DRAWS), (DRAWS[2], CapturesPlainly)],
    ids=str,
)
def test_verified_text_is_the_token_by_token_text_of_the_same_seed(tiny, draws, make):
    engine = Engine(tiny.model, tiny.decode, max_batch=3, piece=32, backend=make and make(tiny.model))
    expected = [result.tokens for result in texts(engine, requests(tiny, "tokens", **draws))]
    for length in (2, 8) if draws is DRAWS[0] else (8,):
        found = texts(engine, requests(tiny, "verified", canvas_length=length, **draws))
        assert [result.tokens for result in found] == expected


def test_right_drafts_save_passes():
    mini = gesso.load()
    options = {"max_new_tokens": 12, "seed": 1, "greed": 1.0}
    slow, fast = (mini.generate("def fib(n):\n", write=name, **options) for name in ("tokens", "verified"))
    assert fast.tokens == slow.tokens
    assert fast.usage.denoising_steps < slow.usage.denoising_steps == 12


def test_verified_text_is_the_same_in_any_batch(tiny):
    together = texts(Engine(tiny.model, tiny.decode, max_batch=4), requests(tiny, "verified"))
    alone = [texts(Engine(tiny.model, tiny.decode), [each])[0] for each in requests(tiny, "verified")]
    assert [result.tokens for result in together] == [result.tokens for result in alone]
    assert [result.usage for result in together] == [result.usage for result in alone]


def test_a_prompt_that_ends_where_rings_are_saved_can_be_reused(tiny):
    """The draft is in the row when its rings are saved. The window of the tiny model is shorter than the prompt."""
    engine = Engine(tiny.model, tiny.decode, piece=32)
    prompt = long_prompt(129)
    first, again = (texts(engine, [tiny.request(prompt, write="verified", max_new_tokens=20, seed=3)])[0]
                    for _ in range(2))  # fmt: skip
    assert again.usage.cached_tokens == 128 and again.tokens == first.tokens


def test_log_probabilities_are_those_of_the_decided_tokens(tiny):
    options = {"max_new_tokens": 12, "seed": 2, "top_logprobs": 2, "t_max": 2.0}
    found = []
    for write in ("tokens", "verified"):
        events = list(tiny.stream("def f", write=write, **options))
        found.append([likely for event in events if event.kind == "commit" for likely in event.likely])
    one_by_one, verified = found
    assert [each.token for each in verified] == pytest.approx([each.token for each in one_by_one], abs=1e-5)
    assert [dict(each.top).keys() for each in verified] == [dict(each.top).keys() for each in one_by_one]


def test_settings_that_verified_decoding_cannot_keep_are_rejected(tiny, main, tiny_directory):
    for options, reason in (
        ({"pins": {0: 5}}, "verified does not support pins"),
        ({"regex": "a+"}, "verified does not support a constraint"),
        ({"steps": 4}, "steps must be 1 with write=verified"),
        ({"canvas_length": 65}, "canvas_length must be 2 to 64 with write=verified"),
    ):
        with pytest.raises(InputError, match=reason):
            tiny.generate("a", write="verified", **options)
    asked = "-m", str(tiny_directory), "--write", "verified", "--max-new-tokens", "3", "--seed", "1", "--json"
    assert json.loads(main("generate", "hi", *asked).out)["usage"]["completion_tokens"] == 3


def test_a_failed_pass_does_not_change_the_text(tiny):
    expected = [result.tokens for result in texts(Engine(tiny.model, tiny.decode), requests(tiny, "verified"))]
    calls = []

    def fails_once(run, pieces, cache):
        hidden = run(pieces, cache)
        calls.append(len(pieces))
        if len(calls) == 5:
            raise torch.OutOfMemoryError("after the rows were written")
        return hidden

    engine = watched_engine(tiny, run=fails_once)
    assert [result.tokens for result in texts(engine, requests(tiny, "verified"))] == expected
    assert len(calls) > 5
