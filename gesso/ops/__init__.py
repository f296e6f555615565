"""One file an operation. The plain-torch version is the specification; the model never asks which one runs."""

from gesso.ops.attention import Attend, LayerCache, Segment, attends, attention, move
from gesso.ops.experts import Answers, choose, chosen, experts, kernels_take, route, stay_on_device
from gesso.ops.fast import Beside as beside
from gesso.ops.fast import send
from gesso.ops.linear import fast_products, gated, linear, linear_in_parts, linears
from gesso.ops.norm import Then, add_norms, join, norm_for, rms_norm
from gesso.ops.rope import heads, inverse_frequencies, rotate, rotation
from gesso.ops.vocab import Reading, draw, read, soft_embedding, softcapped_logits, vocab_tail
from gesso.ops.weight import Adapted, Packed, Parts, Rounded, Rows, Turned, Weight, dense, embed, wanted

__all__ = [
    "Adapted",
    "Answers",
    "Attend",
    "LayerCache",
    "Packed",
    "Parts",
    "Reading",
    "Rounded",
    "Rows",
    "Segment",
    "Then",
    "Turned",
    "Weight",
    "add_norms",
    "attends",
    "attention",
    "beside",
    "choose",
    "chosen",
    "dense",
    "draw",
    "embed",
    "experts",
    "fast_products",
    "gated",
    "heads",
    "inverse_frequencies",
    "join",
    "kernels_take",
    "linear",
    "linear_in_parts",
    "linears",
    "move",
    "norm_for",
    "read",
    "rms_norm",
    "rotate",
    "rotation",
    "route",
    "send",
    "soft_embedding",
    "softcapped_logits",
    "stay_on_device",
    "vocab_tail",
    "wanted",
]
