"""Verified decoding: a canvas drafts the next tokens, and the causal encoder decides how many of them stay.

A pass reads the last known token and the draft after it as text. The hidden state of each position then predicts the
next token, as if the encoder wrote token by token. Drafted tokens stay up to the first one that differs from the
encoder's own draw, which takes its place. The same pass denoises a canvas of noise that begins with the known token.
Its prediction is the next draft. So every pass yields at least one token.

The draw of a token depends on the seed and on the number of the token in the text, for the encoder and for the draft
alike. So the text is the one that `write="tokens"` gives with the same seed, and drafts are often right
even at high temperatures (a coupling by common random numbers, as in arXiv 2408.07978).

L positions of the canvas and of the text to verify, C = 2 L: `tokens_C` of a canvas holds both, in this order.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gesso.diffusion.canvas import FREE, Canvas, Process
from gesso.diffusion.prediction import Prediction


def begin(process: Process, number: int, length: int, known: int, draft: Sequence[int] = ()) -> Canvas:
    """Return the canvas whose pass decides the tokens from `number` on. `known` is the token before them."""
    noise = process.source.at(process.seed, number, 0, process.device).tokens(2 * length, process.vocab_size)
    tokens_C = noise.clone()
    tokens_C[0] = tokens_C[length] = known
    kept = list(draft[: length - 1])
    tokens_C[length + 1 : length + 1 + len(kept)] = torch.tensor(kept, dtype=torch.long, device=process.device)
    return Canvas(number, 0, tokens_C, torch.full_like(tokens_C, FREE), 0)


def halves(values_C: Tensor) -> tuple[Tensor, Tensor]:
    """Return the part of the canvas and that of the text to verify."""
    length = len(values_C) // 2
    return values_C[:length], values_C[length:]


def advance(process: Process, canvas: Canvas, prediction: Prediction, limit: int) -> Canvas:
    """Return a canvas that holds only the decided tokens, at most `limit`, with the draft of the next ones."""
    settings, candidate_C = process.settings, prediction.candidate_C
    if settings.greed:  # as for `write="tokens"`
        noise_C = process.draws(canvas).tokens(len(candidate_C), process.vocab_size)
        candidate_C = torch.where(noise_C < settings.greed * process.vocab_size, prediction.argmax_C, candidate_C)
    (drafted_L, decided_L), (_, text_L) = halves(candidate_C), halves(canvas.tokens_C)
    stays_L = text_L[1:] == decided_L[:-1]
    count = min(int(stays_L.cumprod(-1).sum()) + 1, limit)
    own = slice(len(text_L), len(text_L) + count)
    decided = Prediction(decided_L[:count], decided_L[:count], prediction.confidence_C[own], prediction.entropy_C[own])
    return replace(
        canvas,
        tokens_C=decided.argmax_C,
        pin_C=canvas.pin_C[:count],
        step=1,
        history=(decided,),
        accepted_C=torch.ones_like(decided.argmax_C, dtype=torch.bool),
        draft=tuple(drafted_L[count + 1 :].tolist()),
        reason=process.reason(False, 1),
    )
