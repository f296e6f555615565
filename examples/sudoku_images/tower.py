"""The vision tower of gesso-sudoku and the embeddings that it learns to produce.

A picture becomes one soft token per cell. Each soft token is trained to equal the embedding of the digit's token, which
is the text model's input for a typed puzzle. So the text model needs no training, and solves both alike.

B pictures, S soft tokens, P patches, H hidden size of the text, W width of the tower.
"""

from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.vision import is_buffer
from gesso.eval.sudoku.reading import digit_embeddings
from gesso.model.init import begin_one
from gesso.model.transformer import DiffusionGemma
from gesso.model.vision import Vision
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
    """Return the soft tokens [B, S, H] of pictures of one size, in float32."""
    side = vision.tower.config.position_embedding_size
    # torch.vmap has no rule for the fused attention of CPUs, and one for the products that it consists of.
    kernels = list(SDPBackend.__members__.values()) if pixels_BPI.is_cuda else [SDPBackend.MATH]
    with sdpa_kernel([kernel for kernel in kernels if kernel != SDPBackend.ERROR]):
        soft_BSH = torch.vmap(lambda pixels_PI: vision(pixels_PI, side, side, dtype))(pixels_BPI)
    return soft_BSH.float()


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
