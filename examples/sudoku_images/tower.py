"""The vision tower of gesso-sudoku and the embeddings that it learns to produce.

A picture becomes one soft token per cell. Each soft token is trained to equal the embedding of the digit's token, which
is the text model's input for a typed puzzle. So the text model needs no training, and solves both alike.

B pictures, S soft tokens, P patches, H hidden size of the text, W width of the tower.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.vision import is_buffer
from gesso.eval.sudoku.reading import digit_embeddings
from gesso.model.init import begin_one
from gesso.model.modules import rms_norm
from gesso.model.rope import Rotation, inverse_frequencies, rotation
from gesso.model.transformer import DiffusionGemma
from gesso.model.vision import Vision, VisionAttention, VisionLayer, rotate_both
from gesso.model.vision_config import VisionConfig

PATCH, POOL = 16, 3  # pixels of a patch, and patches of a soft token, as in Gemma 4


def tower_config(side: int = 9) -> VisionConfig:
    """Return the sizes of a tower for grids of `side` x `side` cells: for 9, 1.6 MB in bfloat16.

    Its table of positions is as long as the grid. So every picture is resized to one soft token per cell.
    """
    width, layers = (128, 4) if side == 9 else (64, 2)
    return VisionConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        head_dim=32,
        patch_size=PATCH,
        pooling_kernel_size=POOL,
        position_embedding_size=POOL * side,
    )


def config_fields(config: VisionConfig) -> dict[str, Any]:
    """Return `vision_config` of a config.json."""
    fields = asdict(config)
    theta = fields.pop("theta")
    return {"model_type": "gemma4_vision", **fields, "rope_parameters": {"rope_type": "axial", "rope_theta": theta}}


def new_tower(side: int, hidden_size: int, seed: int, device: torch.device) -> Vision:
    """Return a tower with random weights."""
    vision = Vision(tower_config(side), hidden_size)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in vision.named_parameters():
            begin_one(name, parameter, vision.tower.config.num_hidden_layers, generator)
    return vision.to(device)


def see(vision: Vision, pixels_BPI: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the soft tokens [B, S, H] of square pictures of one size, in float32.

    The model takes one image at a time. These are the same operations on a batch.
    """
    tower, config, device = vision.tower, vision.tower.config, pixels_BPI.device
    side = math.isqrt(pixels_BPI.shape[1])
    row_P = torch.arange(side, device=device).repeat_interleave(side)
    column_P = torch.arange(side, device=device).repeat(side)
    frequencies = inverse_frequencies(config.head_dim // 2, config.theta, 1.0, False).to(device)
    across, down = (rotation(place_P, frequencies, dtype) for place_P in (column_P, row_P))
    x_BPW = tower.patch_embedder(pixels_BPI, column_P, row_P, dtype)
    for layer in cast(Iterable[VisionLayer], tower.encoder.layers):
        attended_BPW = _attend(layer.self_attn, layer.input_layernorm(x_BPW), across, down)
        x_BPW = x_BPW + layer.post_attention_layernorm(attended_BPW)
        x_BPW = x_BPW + layer.post_feedforward_layernorm(layer.mlp(layer.pre_feedforward_layernorm(x_BPW)))
    squares = x_BPW.float().unflatten(1, (side // POOL, POOL, side // POOL, POOL))
    soft_BSW = squares.mean((2, 4)).flatten(1, 2) * config.hidden_size**0.5
    return vision.embedder(soft_BSW.to(dtype)).float()


def _attend(attention: VisionAttention, x_BPW: Tensor, across: Rotation, down: Rotation) -> Tensor:
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    q, k, v = (project(x_BPW).unflatten(-1, (-1, attention.dim)) for project in projections)
    q, k = rotate_both(attention.q_norm(q), across, down), rotate_both(attention.k_norm(k), across, down)
    q, k, v = (x.transpose(1, 2) for x in (q, k, rms_norm(v, None, attention.eps)))
    return attention.o_proj(F.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).flatten(2))


class Targets:
    """The embeddings of the digits, and how far soft tokens are from them."""

    def __init__(self, model: DiffusionGemma, tokenizer: Tokenizer) -> None:
        self.first_DH, self.rest_DH = digit_embeddings(model, tokenizer)  # D = 10 digits
        spread = torch.cdist(self.rest_DH, self.rest_DH)
        self.scale = (spread[spread > 0].square().mean() / 20).item()  # a distance between digits is about 20

    def distances(self, soft_BSH: Tensor) -> Tensor:
        """Return the squared distance [B, S, 10] of each soft token from each digit."""
        rest_BSD = _squared_distances(soft_BSH[:, 1:], self.rest_DH)
        return torch.cat([_squared_distances(soft_BSH[:, :1], self.first_DH), rest_BSD], dim=1) / self.scale

    def loss(self, soft_BSH: Tensor, digits_BS: Tensor) -> Tensor:
        """Return the cross-entropy of the nearest digit, and the distance from the right one."""
        far_BSD = self.distances(soft_BSH)
        wrong = F.cross_entropy(-far_BSD.flatten(0, 1), digits_BS.flatten())
        return wrong + 0.1 * far_BSD.gather(-1, digits_BS[..., None]).mean()


def _squared_distances(soft_BSH: Tensor, digit_DH: Tensor) -> Tensor:
    products_BSD = soft_BSH @ digit_DH.T
    return soft_BSH.square().sum(-1, keepdim=True) - 2 * products_BSD + digit_DH.square().sum(-1)


def trained(vision: Vision) -> dict[str, torch.nn.Parameter]:
    """Return the parameters to train."""
    return {name: parameter for name, parameter in vision.named_parameters() if not is_buffer(name)}
