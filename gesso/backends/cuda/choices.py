"""The launches that are chosen for a card, in words: for `gesso info --gpu` and `gesso bench`."""

import torch

from gesso.backends.cuda.families import ALL, FAMILIES, Family, Kernels
from gesso.backends.cuda.kernels import experts, linear, soft, vocab
from gesso.backends.cuda.kernels.attention_tiles import tiles
from gesso.backends.cuda.kernels.linear import FP8, Tiling
from gesso.cards.card import Card
from gesso.model.config import Config

PLAIN = "plain operations"


def choices(config: Config, card: Card, kernels: Kernels = ALL, *, low: bool = False) -> dict[Family, str]:
    """Return the tiles of each family for a step of one canvas. `low`: the weights are in FP8; otherwise in bf16."""
    if not card.runs_kernels or (low and not card.converts_e4m3):
        return dict.fromkeys(FAMILIES, PLAIN)
    tokens, dtype = config.canvas_length, FP8 if low else torch.bfloat16
    groups = {shape.head_dim: config.num_attention_heads // shape.kv_heads for shape in config.layers}
    attention = {dim: tiles(dim, torch.bfloat16, card, tokens * count) for dim, count in groups.items()}
    dense, _ = linear.choose_tiling(linear.PLAIN, tokens, [config.hidden_size], dtype, card, linear.PARTS)
    grouped = experts.tiling_for(experts.UP, dtype, tokens, card)
    logits, _ = vocab.logits_tiling(card, torch.bfloat16, low=low)
    mean = soft.mean_tiling(card, low=low)
    shown: dict[Family, str] = {
        "attention": ", ".join(
            f"{tile.rows} × {tile.keys}, {tile.warps} warps{' by role' if tile.roles else ''} (heads of {dim})"
            for dim, tile in sorted(attention.items())
        ),
        "products": _shown(dense),
        "experts": _shown(grouped),
        "vocabulary end": (
            f"{logits.rows} × {logits.columns}, {logits.warps} warps; {mean.rows} × {mean.columns}, {mean.warps} warps"
        ),
        "rows": "one row per program",
    }
    return {family: shown[family] if kernels.run(family) else PLAIN for family in FAMILIES}


def _shown(tiling: Tiling) -> str:
    return f"{tiling.rows} × {tiling.columns}, {tiling.warps} warps"
