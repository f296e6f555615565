"""Choose how a model writes on its device if a request leaves it open: `Diffusion.write` and the canvas length.

A GPU denoises a canvas of 256 tokens nearly as fast as it encodes one token. A CPU does not: a canvas reads all experts
and multiplies by every row, while a token reads an eighth of the weights. Which of them is faster depends on the
machine and on the format of the weights, so it is measured with the loaded model.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from gesso.backends.base import Backend, Piece
from gesso.engine.ways import Writing
from gesso.memory.weights import loaded_bytes
from gesso.settings import Diffusion, WriteName

LEAST_BYTES = 2 * 10**9  # weights of a model that is measured; a smaller one writes before a measurement would end
# Steps that a canvas of this length is assumed to take. The model decides the real number, text by text. 16 is that of
# our benchmarks. A shorter canvas saves fewer steps than tokens: those of gesso-mini take no fewer steps at all.
STEPS = {16: 8, 64: 12, 256: 16}
PROMPT = 32  # tokens before the measured ones
PASSES = 3  # of which the fastest counts


def choose_writing(
    write: WriteName | None, defaults: Diffusion, backend: Backend, longest: int, least_bytes: int = LEAST_BYTES
) -> Writing:
    """Return how a model writes: as asked, or as the checkpoint's `defaults` say, or on a CPU what is faster.

    Only a model of `least_bytes` is measured. Canvases are at most `longest` tokens.
    """
    if write is not None:
        return Writing(write=write, why="as requested")
    if defaults.by_token:
        return Writing(write=defaults.write, why="the checkpoint's default")
    model = backend.model
    if model.device.type != "cpu" or loaded_bytes(model) < least_bytes:
        return Writing()
    rates = measure(lambda tokens, causal: _pass_seconds(backend, tokens, causal), longest)
    best = max(rates, key=lambda length: rates[length])
    shown = ", ".join(
        f"{'token by token' if length == 1 else f'canvases of {length}'} {rate:.2g}" for length, rate in rates.items()
    )
    return Writing(
        write="tokens" if best == 1 else "canvas",
        canvas_length=None if best == 1 else best,
        rates=rates,
        why=f"expected tokens/s: {shown}",
    )


def measure(seconds: Callable[[int, bool], float], longest: int) -> dict[int, float]:
    """Return the expected tokens per second by canvas length; 1 is token by token.

    `seconds` measures a pass over some tokens, as text or as a canvas. The measurement ends as soon as longer canvases
    would lose even if they took no longer than the last one: a pass over 256 tokens may take many seconds.
    """
    rates = {1: 1 / seconds(1, True)}
    least = 1 / rates[1]
    lengths = [length for length in STEPS if length <= longest]
    for i, length in enumerate(lengths):
        if max(longer / (STEPS[longer] * least) for longer in lengths[i:]) <= max(rates.values()):
            break
        least = seconds(length, False)
        # A finished canvas is encoded, which takes about as long as a step.
        rates[length] = length / ((STEPS[length] + 1) * least)
    return rates


def _pass_seconds(backend: Backend, tokens: int, causal: bool) -> float:
    """Return the time of a pass, with its prediction, after a short prompt."""
    model = backend.model
    cache = model.new_cache(1, PROMPT + (1 + PASSES) * tokens)
    ids = _spread_ids(PROMPT + tokens, model.config.vocab_size)
    backend.run([Piece(0, ids[:PROMPT], causal=True)], cache)
    times = []
    for _ in range(1 + PASSES if tokens == 1 else 2):  # the first pass reads pages and compiles kernels
        began = time.perf_counter()
        (hidden_SH,) = backend.run([Piece(0, ids[PROMPT:], causal=causal)], cache)
        key_T2 = torch.zeros(tokens, 2, dtype=torch.int32)
        backend.predict(hidden_SH, torch.ones(tokens), key_T2, [tokens], soft=not causal)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def _spread_ids(count: int, vocab_size: int) -> Tensor:
    """Return different tokens, so that they choose different experts."""
    return (torch.arange(count) * 7919 + 11) % vocab_size
