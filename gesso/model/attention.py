"""Attention of one layer. T tokens of all segments, H hidden, N query heads, M key/value heads, D head dim."""

from collections.abc import Sequence

from torch import Tensor, nn

from gesso import ops
from gesso.model.config import Config, LayerShape
from gesso.model.parts import Linear, RMSNorm

Rotation = tuple[Tensor, Tensor]  # cosine and sine [T, 1, D]


class Attention(nn.Module):
    def __init__(self, config: Config, shape: LayerShape) -> None:
        super().__init__()
        self.dim, self.eps = shape.head_dim, config.rms_norm_eps
        hidden, queries, keys = config.hidden_size, config.num_attention_heads * self.dim, shape.kv_heads * self.dim
        self.q_proj = Linear(hidden, queries)
        self.k_proj = Linear(hidden, keys)
        self.v_proj = Linear(hidden, keys) if shape.sliding else None
        self.o_proj = Linear(queries, hidden)
        self.q_norm = RMSNorm(self.dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.dim, config.rms_norm_eps)

    @property
    def projections(self) -> list[ops.Adapted]:
        return [each.matrix for each in (self.q_proj, self.k_proj, self.v_proj) if each]

    @property
    def wants(self) -> str | None:
        return ops.wanted(self.projections)

    def forward(
        self, x_TH: ops.Rows, lengths: Sequence[int], attend: ops.Attend, rotation: Rotation
    ) -> Tensor | ops.Parts:
        products = ops.linears(x_TH, self.projections, lengths)
        # In a global layer key and value are one projection; only norm and rotation tell them apart.
        q_TND, k_TMD, v_TMD = (each.unflatten(-1, (-1, self.dim)) for each in (*products, products[-1])[:3])
        q, k, v = ops.heads(q_TND, k_TMD, v_TMD, self.q_norm.weight, self.k_norm.weight, rotation, self.eps)
        return self.o_proj.in_parts(attend(q, k, v).flatten(1), lengths)
