"""Verified decoding with captured passes on a GPU."""

import pytest

import gesso
from tests.gpu.device import DEVICE, DRY_RUN

pytestmark = pytest.mark.gpu

COUNT = 8 if DRY_RUN else 48
PROMPTS = ("def fib(n):\n", "import os\n\ndef walk(path):\n", "class Stack:\n    def push(self, x):\n", "x = " * 200)


def texts(g, write: str, **options) -> list[tuple[int, ...]]:
    made = [g.request(prompt, write=write, max_new_tokens=COUNT, seed=seed, **options)
            for seed, prompt in enumerate(PROMPTS)]  # fmt: skip
    return [result.tokens for result in g.run(made)]


@pytest.mark.parametrize("options", [{"greed": 1.0}, {}, {"top_p": 0.8}], ids=str)
def test_verified_text_is_the_token_by_token_text_in_float32(options):
    g = gesso.load(device=DEVICE, dtype="float32")
    expected = texts(g, "tokens", **options)
    assert [texts(g, "verified", **options) for _ in range(3)] == [expected] * 3  # the second pass is captured


def test_verified_text_is_the_same_alone_and_in_a_batch(mini):
    together = texts(mini, "verified")
    alone = [
        mini.generate(prompt, write="verified", max_new_tokens=COUNT, seed=seed).tokens
        for seed, prompt in enumerate(PROMPTS)
    ]
    assert together == alone


def test_verified_drafts_save_passes(mini):
    out = mini.generate(PROMPTS[0], write="verified", greed=1.0, max_new_tokens=48, seed=1)
    assert out.usage.denoising_steps < len(out.tokens)
