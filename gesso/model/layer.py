"""One layer: attention, then a dense MLP and a mixture of experts side by side.

Modules have the names of the checkpoint: norms with `_1` belong to the dense MLP, those with `_2` to the experts.

T tokens, H hidden, E experts, K experts per token.
"""

from torch import Tensor, nn

from gesso.model.attention import Attend, Attention
from gesso.model.config import Config, LayerShape
from gesso.model.experts import Experts, Router
from gesso.model.modules import GatedMLP, RMSNorm
from gesso.model.rope import Rotation


class Layer(nn.Module):
    def __init__(self, config: Config, shape: LayerShape) -> None:
        super().__init__()

        def norm() -> RMSNorm:
            return RMSNorm(config.hidden_size, config.rms_norm_eps)

        self.self_attn = Attention(config, shape)
        self.mlp = GatedMLP(config)
        self.router = Router(config)
        self.experts = Experts(config)
        self.input_layernorm = norm()
        self.post_attention_layernorm = norm()
        self.pre_feedforward_layernorm = norm()
        self.post_feedforward_layernorm_1 = norm()
        self.pre_feedforward_layernorm_2 = norm()
        self.post_feedforward_layernorm_2 = norm()
        self.post_feedforward_layernorm = norm()

    def forward(self, x_TH: Tensor, attend: Attend, rotation: Rotation, scalar: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden states after this layer, and the router's scores [T, E].

        `scalar` is the layer's output scale, [1] or [T, 1]: it differs between encoder and decoder.
        """
        attended_TH = self.self_attn(self.input_layernorm(x_TH), attend, rotation)
        x_TH = x_TH + self.post_attention_layernorm(attended_TH)
        index_TK, weight_TK, scores_TE = self.router(x_TH)
        dense_TH = self.mlp(self.pre_feedforward_layernorm(x_TH))
        sparse_TH = self.experts(self.pre_feedforward_layernorm_2(x_TH), index_TK, weight_TK)
        both_TH = self.post_feedforward_layernorm_1(dense_TH) + self.post_feedforward_layernorm_2(sparse_TH)
        return (x_TH + self.post_feedforward_layernorm(both_TH)) * scalar, scores_TE
