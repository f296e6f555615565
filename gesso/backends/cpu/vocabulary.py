"""Predict the next token of a text in one pass over the head. `TorchBackend.predict` is the specification.

H hidden, V vocabulary, P parts of the vocabulary.
"""

import torch
from torch import Tensor

from gesso.backends.cpu import threads
from gesso.backends.cpu.kernels import vocabulary as kernel
from gesso.backends.cpu.kernels.vectors import LANES
from gesso.backends.cpu.products import PackedMatrix, rounded
from gesso.diffusion.prediction import Prediction
from gesso.model.transformer import DiffusionGemma


def head_of(model: DiffusionGemma) -> PackedMatrix | None:
    """Return the head of a model, if the kernel can multiply by it."""
    head = getattr(model.head, "product", None)
    return head if isinstance(head, PackedMatrix) and head.outputs % LANES == 0 else None


def predict(head: PackedMatrix, softcap: float, hidden_1H: Tensor, temperature: float, key_12: Tensor) -> Prediction:
    """Return the prediction of one position, without its self-conditioning."""
    assert len(hidden_1H) == 1 and key_12.dtype == torch.int32
    parts = -(-head.outputs // kernel.PART)
    x = rounded(hidden_1H, head.inputs, head.format, is_few=True)
    key_12 = key_12.contiguous()
    matrix = head.numbers()
    logits_V = torch.empty(head.outputs)
    out_P6 = torch.empty(parts, kernel.STATISTICS)
    threads.run(
        kernel.predict, matrix.data_ptr(), x.data_ptr(), logits_V.data_ptr(), key_12.data_ptr(),
        threads.bits(temperature), threads.bits(softcap), out_P6.data_ptr(), threads=threads.count(parts),
    )  # fmt: skip
    return _joined(out_P6, head.outputs)


def _joined(out_P6: Tensor, tokens: int) -> Prediction:
    """Join the statistics of the parts. If two have the same maximum, the first one counts; if it is NaN, any token."""
    top_P, token_P, sum_P, product_P, drawn_P, candidate_P = out_P6.unbind(-1)
    best, drawn = top_P.argmax(), drawn_P.argmax()
    below_P = top_P - top_P[best]
    weight_P = below_P.exp()
    total = (weight_P * sum_P).sum()
    mean = (weight_P * (product_P + below_P * sum_P)).sum() / total  # of logits minus the largest
    return Prediction(
        candidate_C=candidate_P[drawn, None].long().clamp(max=tokens - 1),
        argmax_C=token_P[best, None].long().clamp(max=tokens - 1),
        confidence_C=1 / total[None],
        entropy_C=(total.log() - mean)[None],
    )
