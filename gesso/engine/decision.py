"""Decisions among several texts, the choices, after one prompt. `gesso.request.build` has the request.

The decoder predicts every position of a canvas of noise in one pass. The score of a choice is the sum of the
log-probabilities of its tokens at the first positions, so any number of choices costs one pass. The comparison with
other methods is in docs/guides/decisions.md.

Imports no torch: the server process checks requests that another process runs.
"""

import math
from collections.abc import Sequence

from gesso.chat.tokenizer import Tokenizer
from gesso.checks import shown
from gesso.errors import InputError

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


def probabilities(scores: Sequence[float]) -> list[float]:
    """Return the probability of each choice, given that it is one of them, from their log-probabilities."""
    best = max(scores)
    weights = [math.exp(score - best) for score in scores]
    return [weight / sum(weights) for weight in weights]
