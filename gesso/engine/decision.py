"""Decisions: the request that compares several texts, the choices, after one prompt.

The decoder predicts every position of a canvas of noise in one pass. The score of a choice is the sum of the
log-probabilities of its tokens at the first positions, so any number of choices costs one pass. The comparison with
other methods is in docs/guides/decisions.md.

Imports no torch: the server process checks requests that another process runs.
"""

import math
from collections.abc import Sequence

from gesso.chat.tokenizer import Tokenizer
from gesso.checks import shown
from gesso.engine.request import Request
from gesso.errors import InputError
from gesso.model.config import Config
from gesso.settings import Diffusion

CHOICES = 256  # most choices of a decision


def choice_tokens(tokenizer: Tokenizer, choices: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each choice, after checking that they are different texts."""
    if isinstance(choices, str) or not isinstance(choices, Sequence):
        raise InputError(f"choices must be a list of texts, got {shown(choices)}")
    if not 2 <= len(choices) <= CHOICES:
        raise InputError(f"choices must be 2 to {CHOICES} texts, got {len(choices)}")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise InputError(f"a choice must be a text of at least one character, got {shown(choice)}")
        if choices.count(choice) > 1:
            raise InputError(f"the choice {shown(choice)} is given twice; give each choice once")
    return tuple(tuple(tokenizer.encode(choice, bos=False)) for choice in choices)


def decision_request(
    prompt: Sequence[int],
    texts: Sequence[Sequence[int]],
    eos: frozenset[int],
    config: Config,
    usual: int,
    limit: int,
    adapter: str | None,
) -> Request:
    """Return the request that compares texts after a prompt.

    With `eos`, a text is a whole answer, and its end counts. Without, it may continue, so none may begin another.
    The canvas is as long as that of a usual answer of `usual` tokens: a model predicts a shorter canvas less reliably
    than the lengths it was trained with. It ends where the context of `limit` tokens ends.
    """
    needed = max(map(len, texts)) + bool(eos)
    if needed > config.canvas_length:
        most = config.canvas_length - bool(eos)
        raise InputError(f"a choice has {max(map(len, texts))} tokens; at most {most} fit a canvas: shorten it")
    ordered = sorted(map(tuple, texts))
    if not eos and any(after[: len(text)] == text for text, after in zip(ordered, ordered[1:], strict=False)):
        raise InputError("one choice begins another; add the text that distinguishes them, or give messages as prompt")
    return Request(
        prompt=tuple(prompt),
        max_new_tokens=max(needed, min(config.canvas_length, usual, limit - len(prompt))),
        diffusion=Diffusion(steps=1),
        eos=eos,
        compared=tuple(map(tuple, texts)),
        adapter=adapter,
    )


def probabilities(scores: Sequence[float]) -> list[float]:
    """Return the probability of each choice, given that it is one of them, from their log-probabilities."""
    best = max(scores)
    weights = [math.exp(score - best) for score in scores]
    return [weight / sum(weights) for weight in weights]
