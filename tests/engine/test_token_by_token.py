"""`write="tokens"`: one token per pass, from left to right."""

import json

import pytest
import torch

from gesso.errors import InputError
from tests.engine.models import with_engine, with_graphs


def greedy(g, prompt, count):
    """Return the likeliest tokens of the causal encoder, computed without cache or engine."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            cache = g.model.new_cache(1, len(ids))
            hidden_BSH = g.model.encode(torch.tensor([ids]), cache)
            ids.append(int(g.model.logits(hidden_BSH[0, -1:]).argmax()))
    return tuple(ids[len(prompt) :])


@pytest.mark.parametrize("graphs", [False, True])
def test_greedy_text_is_the_argmax_of_the_causal_encoder(tiny, graphs):
    g = with_graphs(tiny) if graphs else with_engine(tiny)
    prompt = tiny.tokenizer.encode("def fib(n):")
    out = g.generate(prompt, write="tokens", greed=1.0, max_new_tokens=12, seed=0)
    assert out.tokens == greedy(tiny, prompt, 12)[: len(out.tokens)] and out.tokens
    assert out.usage.denoising_steps == out.usage.canvases, "one step per token"


def test_a_fully_cached_prompt_gives_the_same_text(tiny):
    prompt = tiny.tokenizer.encode("x") * 512
    options = {"write": "tokens", "max_new_tokens": 3, "seed": 1}
    assert tiny.generate(prompt, **options).tokens == tiny.generate(prompt, **options).tokens


def test_draws_depend_on_the_seed(tiny):
    def text(seed):
        return tiny.generate("a", write="tokens", t_max=2.0, max_new_tokens=8, seed=seed).tokens

    assert text(1) == text(1) != text(2)


def test_writing_token_by_token_rejects_several_steps(tiny):
    with pytest.raises(InputError, match="steps must be 1 with write=tokens"):
        tiny.generate("a", write="tokens", steps=4)


def test_the_command_line_writes_token_by_token(main, tiny_directory):
    asked = "-m", str(tiny_directory), "--write", "tokens", "--max-new-tokens", "3", "--seed", "1", "--json"
    found = json.loads(main("generate", "hi", *asked).out)
    assert found["usage"]["denoising_steps"] == found["usage"]["completion_tokens"] == 3
    assert "must be 1 with write=tokens" in main("generate", "hi", *asked, "--steps", "2").err
