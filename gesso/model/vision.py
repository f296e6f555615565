"""The vision tower: what the model sees in an image.

It turns the patches of one image into soft tokens, which take the place of embedded text in a prompt. All patches see
each other. The result is averaged over squares of patches, so that a soft token stands for 48 x 48 pixels.

Its matrices may be in a narrower dtype than it computes in, or in host memory beside a GPU: each is converted and
copied when it is used. That saves a gigabyte and costs little beside thousands of patches.

P patches, S soft tokens, W width of the tower, N query heads, M key/value heads, D head dim, H hidden size of the text.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gesso.errors import InputError
from gesso.model.attention import attend_to
from gesso.model.modules import Linear, RMSNorm, gated_gelu, rms_norm
from gesso.model.rope import Rotation, inverse_frequencies, rotate, rotation
from gesso.model.vision_config import VisionConfig


class ClippedLinear(nn.Module):
    """A linear map whose inputs and outputs are clipped to bounds that come with the weights, if the tower has them."""

    def __init__(self, config: VisionConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = Linear(inputs, outputs)
        self.clips = config.use_clipped_linears
        if self.clips:
            self.input_min, self.input_max, self.output_min, self.output_max = (
                nn.Parameter(torch.empty(()), requires_grad=False) for _ in range(4)
            )

    def forward(self, x: Tensor) -> Tensor:
        weight = self.linear.weight.to(x)
        if not self.clips:
            return F.linear(x, weight)
        # The bounds are exact in the dtype that they were stored in.
        low, high, least, most = (
            bound.to(x.dtype) for bound in (self.input_min, self.input_max, self.output_min, self.output_max)
        )
        return F.linear(x.clamp(low, high), weight).clamp(least, most)


class VisionAttention(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.dim, self.eps = config.head_dim, config.rms_norm_eps
        queries, keys = config.num_attention_heads * self.dim, config.num_key_value_heads * self.dim
        self.q_proj = ClippedLinear(config, config.hidden_size, queries)
        self.k_proj = ClippedLinear(config, config.hidden_size, keys)
        self.v_proj = ClippedLinear(config, config.hidden_size, keys)
        self.o_proj = ClippedLinear(config, queries, config.hidden_size)
        self.q_norm = RMSNorm(self.dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.dim, config.rms_norm_eps)

    def forward(self, x_PW: Tensor, across: Rotation, down: Rotation) -> Tensor:
        q_PND, k_PMD, v_PMD = (
            project(x_PW).unflatten(-1, (-1, self.dim)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q_PND, k_PMD = rotate_both(self.q_norm(q_PND), across, down), rotate_both(self.k_norm(k_PMD), across, down)
        return self.o_proj(attend_to(q_PND, k_PMD, rms_norm(v_PMD, None, self.eps)).flatten(1))


def rotate_both(x_PND: Tensor, across: Rotation, down: Rotation) -> Tensor:
    """Rotate one half of each head by the column of its patch, the other by the row."""
    left, right = x_PND.chunk(2, dim=-1)
    return torch.cat([rotate(left, *across), rotate(right, *down)], dim=-1)


class VisionMLP(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.gate_proj = ClippedLinear(config, config.hidden_size, config.intermediate_size)
        self.up_proj = ClippedLinear(config, config.hidden_size, config.intermediate_size)
        self.down_proj = ClippedLinear(config, config.intermediate_size, config.hidden_size)

    def forward(self, x_PW: Tensor) -> Tensor:
        return self.down_proj(gated_gelu(self.gate_proj(x_PW), self.up_proj(x_PW)))


class VisionLayer(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.self_attn = VisionAttention(config)
        self.mlp = VisionMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.pre_feedforward_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_feedforward_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x_PW: Tensor, across: Rotation, down: Rotation) -> Tensor:
        attended = self.self_attn(self.input_layernorm(x_PW), across, down)
        x_PW = x_PW + self.post_attention_layernorm(attended)
        return x_PW + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x_PW)))


class VisionEncoder(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VisionLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x_PW: Tensor, across: Rotation, down: Rotation) -> Tensor:
        for layer in self.layers:
            x_PW = layer(x_PW, across, down)
        return x_PW


class PatchEmbedder(nn.Module):
    """Embeds the pixels of a patch, its column and its row."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.input_proj = Linear(3 * config.patch_size**2, config.hidden_size)
        self.position_embedding_table = nn.Parameter(torch.empty(2, config.position_embedding_size, config.hidden_size))

    def forward(self, pixels_PI: Tensor, column_P: Tensor, row_P: Tensor, dtype: torch.dtype) -> Tensor:
        scaled_PI = 2 * (pixels_PI.float() / 255 - 0.5)
        pixels_PW = F.linear(scaled_PI.to(dtype), self.input_proj.weight.to(scaled_PI.device, dtype))
        for table_LW, place_P in zip(self.position_embedding_table, (column_P, row_P), strict=True):
            pixels_PW = pixels_PW + table_LW[place_P.to(table_LW.device)].to(pixels_PW)
        return pixels_PW


class Tower(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embedder = PatchEmbedder(config)
        self.encoder = VisionEncoder(config)
        if config.standardize:
            self.std_bias, self.std_scale = (
                nn.Parameter(torch.empty(config.hidden_size), requires_grad=False) for _ in range(2)
            )

    def forward(self, pixels_PI: Tensor, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        config, device = self.config, pixels_PI.device
        self._check(pixels_PI, rows, columns)
        row_P = torch.arange(rows, device=device).repeat_interleave(columns)
        column_P = torch.arange(columns, device=device).repeat(rows)
        x_PW = self.patch_embedder(pixels_PI, column_P, row_P, dtype)
        frequencies = inverse_frequencies(config.head_dim // 2, config.theta, 1.0, False).to(device)
        across, down = (rotation(place_P, frequencies, dtype) for place_P in (column_P, row_P))
        x_PW = self.encoder(x_PW, across, down)
        return self._pooled(x_PW, rows, columns).to(dtype)

    def _pooled(self, x_PW: Tensor, rows: int, columns: int) -> Tensor:
        """Return the mean [S, W] of each square of patches in float32, scaled: float16 could not hold the result."""
        side = self.config.pooling_kernel_size
        squares = x_PW.float().view(rows // side, side, columns // side, side, -1)
        pooled_SW = squares.mean((1, 3)).flatten(0, 1).to(x_PW.dtype).float() * self.config.hidden_size**0.5
        if self.config.standardize:
            pooled_SW = (pooled_SW - self.std_bias.float()) * self.std_scale.float()
        return pooled_SW

    def _check(self, pixels_PI: Tensor, rows: int, columns: int) -> None:
        side, most = self.config.pooling_kernel_size, self.config.position_embedding_size
        shape = [rows * columns, 3 * self.config.patch_size**2]
        if list(pixels_PI.shape) != shape or rows % side or columns % side or not 0 < max(rows, columns) <= most:
            raise InputError(
                f"an image of {rows} x {columns} patches must be [{shape[0]}, {shape[1]}] pixels, with sides that are "
                f"multiples of {side} and at most {most} patches; got {list(pixels_PI.shape)}"
            )


class VisionEmbedder(nn.Module):
    """Projects soft tokens into the space of embedded text."""

    def __init__(self, config: VisionConfig, hidden_size: int) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.embedding_projection = Linear(config.hidden_size, hidden_size)

    def forward(self, soft_SW: Tensor) -> Tensor:
        return F.linear(rms_norm(soft_SW, None, self.eps), self.embedding_projection.weight.to(soft_SW))


class Vision(nn.Module):
    """The tower and the projection of its soft tokens."""

    def __init__(self, config: VisionConfig, hidden_size: int) -> None:
        super().__init__()
        self.tower = Tower(config)
        self.embedder = VisionEmbedder(config, hidden_size)

    def forward(self, pixels_PI: Tensor, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """Return the embeddings [S, H] of an image: `pixels_PI` are its patches, row by row, from 0 to 255."""
        return self.embedder(self.tower(pixels_PI, rows, columns, dtype))
