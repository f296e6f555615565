"""One token of text through the network in one kernel. `DiffusionGemma.run` is the specification.

Operation by operation, the small operations of a layer take as long as its products.

H hidden, N query heads, M key/value heads, D head dim, E experts, L layers.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from gesso.backends.cpu import threads
from gesso.backends.cpu.attention import seen
from gesso.backends.cpu.kernels import layers as kernel
from gesso.backends.cpu.kernels import table
from gesso.backends.cpu.kernels.rounding import BLOCK, ROW_BLOCK_BYTES
from gesso.backends.cpu.kernels.stages import STAGE_BYTES
from gesso.backends.cpu.products import PackedMatrix
from gesso.model.cache import KVCache
from gesso.model.config import Config
from gesso.model.few_experts import runs_all
from gesso.model.rope import frequencies, rotation
from gesso.model.transformer import DiffusionGemma, Layer

LANES = 16


def supports(model: DiffusionGemma) -> bool:
    """Return whether the kernel can run a token: all matrices have kernels, and rows consist of whole vectors.

    Queries, keys and values share their rounded input, as gates and ups do, so they must have one format.
    """
    config, stack = model.config, model.encoder
    sizes = config.hidden_size, config.intermediate_size, config.moe_intermediate_size
    if any(size % LANES for size in sizes) or any(shape.head_dim % (2 * LANES) for shape in config.layers):
        return False
    if runs_all(config.num_experts, config.top_k_experts):
        return False
    for layer in stack.layers:
        assert isinstance(layer, Layer)
        matrices = _matrices(layer)
        formats = {field: matrix.format for field, matrix in matrices.items() if matrix is not None}
        shared = [(table.Q_PROJ, table.K_PROJ), (table.K_PROJ, table.V_PROJ), (table.GATE_PROJ, table.UP_PROJ)]
        needed = matrices.keys() - ({table.V_PROJ} if layer.self_attn.v_proj is None else set())
        if formats.keys() != needed or any(formats[a] != formats.get(b, formats[a]) for a, b in shared):
            return False
        if not all(isinstance(weight, Tensor) and weight.dtype == torch.float32 for weight in _weights(layer).values()):
            return False
    return all(scalar.dtype == torch.float32 for scalar in stack.layer_scalars)


class TokenPass:
    """The layers of the encoder as the table of the kernel, and the buffers of a pass.

    The table has addresses: the tensors are referred to here, so that they exist as long as the table.
    """

    def __init__(self, model: DiffusionGemma) -> None:
        config, stack = model.config, model.encoder
        self.model, self.stack = model, stack
        self.buffers = _buffers(config)
        self.counters = torch.zeros(len(stack.layers), kernel.STAGES, STAGE_BYTES // 8, dtype=torch.int64)
        self.table = torch.zeros(len(stack.layers), table.LAYER_BYTES // 8, dtype=torch.int64)
        self.held: list[object] = []
        self.first: PackedMatrix | None = None
        for index, layer in enumerate(stack.layers):
            assert isinstance(layer, Layer)
            shape, matrices = config.layers[index], _matrices(layer)
            weights = _weights(layer) | {table.SCALAR: stack.layer_scalars[index]}
            self.held += [matrices, weights]
            self.first = self.first or matrices[table.Q_PROJ]
            fields = {field: tensor.data_ptr() for field, tensor in (weights | self.buffers).items()}
            for field, matrix in matrices.items():
                if matrix is not None:
                    fields |= {field + 8 * i: number for i, number in enumerate(matrix.numbers().tolist())}
            if matrices[table.V_PROJ] is None:
                fields[table.RAW_VALUES] = fields[table.NEW_KEYS]
            fields |= {
                table.COUNTERS: self.counters[index].data_ptr(),
                table.HIDDEN: config.hidden_size,
                table.HEADS: shape.kv_heads,
                table.GROUP: config.num_attention_heads // shape.kv_heads,
                table.SIZE: shape.head_dim,
                table.EXPERTS: config.num_experts,
                table.CHOSEN: config.top_k_experts,
                table.EPS: threads.bits(config.rms_norm_eps),
                table.ROOT: threads.bits(layer.router.root),
            }
            for field, value in fields.items():
                self.table[index, field // 8] = value

    def can_run(self, cache: KVCache) -> bool:
        """Return whether the model has not been moved since, and the cache has the type that the kernel reads."""
        first = self.stack.layers[0]
        assert isinstance(first, Layer)
        return _matrices(first)[table.Q_PROJ] is self.first and cache.layers[0].k[0].dtype == torch.float32

    def run(self, ids_S: Tensor, cache: KVCache, row: int) -> Tensor:
        """Return the hidden state [1, H] of one token of text, and append it to the cache."""
        config, start = self.model.config, cache.lengths[row]
        assert start < cache.capacities[row]
        position_S = torch.tensor([start])
        rotations = {
            shape: rotation(position_S, frequencies(shape, position_S.device), torch.float32)
            for shape in set(config.layers)
        }
        places, most = [], 0
        for shape, layer in zip(config.layers, cache.layers, strict=True):
            keys_LMD, values_LMD = layer.k[row], layer.v[row]
            cos, sin = rotations[shape]
            count, oldest, unseen = seen(layer, row, start)
            most = max(most, count)
            addresses = (tensor.data_ptr() for tensor in (keys_LMD, values_LMD, cos, sin))
            places.append((*addresses, count, oldest, unseen, start % len(keys_LMD)))
        scores = torch.empty(config.num_attention_heads, most + LANES)
        changing = (
            *(table.KEYS, table.VALUES, table.COS, table.SIN),
            *(table.HELD, table.OLDEST, table.UNSEEN, table.PLACE),
        )
        self.table[:, [field // 8 for field in changing]] = torch.tensor(places)
        self.table[:, table.SCORES // 8] = scores.data_ptr()
        self.counters.zero_()
        x_SH = self.buffers[table.X]
        x_SH.copy_(self.model.embed(ids_S, self.stack))
        used = threads.count(config.hidden_size)
        threads.run(kernel.run_layers, self.table.data_ptr(), len(self.table), threads=used)
        cache.lengths[row] += 1
        hidden_SH: Tensor = self.stack.norm(x_SH)
        return hidden_SH


def _matrices(layer: Layer) -> dict[int, PackedMatrix | None]:
    """Return the packed matrices of a layer by field; None where there is none, or none with a kernel."""
    attention = layer.self_attn
    mlp = layer.mlp
    experts = layer.experts
    weights: Mapping[int, object] = {
        table.Q_PROJ: attention.q_proj.weight,
        table.K_PROJ: attention.k_proj.weight,
        table.V_PROJ: None if attention.v_proj is None else attention.v_proj.weight,
        table.O_PROJ: attention.o_proj.weight,
        table.GATE_PROJ: mlp.gate_proj.weight,
        table.UP_PROJ: mlp.up_proj.weight,
        table.DOWN_PROJ: mlp.down_proj.weight,
        table.EXPERTS_UP: experts.gate_up_proj,
        table.EXPERTS_DOWN: experts.down_proj,
    }
    return {field: getattr(weight, "product", None) for field, weight in weights.items()}


def _weights(layer: Layer) -> dict[int, Tensor]:
    """Return the weights of norms and router by field."""
    return {
        table.NORM_INPUT: layer.input_layernorm.weight,
        table.NORM_QUERY: layer.self_attn.q_norm.weight,
        table.NORM_KEY: layer.self_attn.k_norm.weight,
        table.NORM_ATTENDED: layer.post_attention_layernorm.weight,
        table.NORM_DENSE: layer.pre_feedforward_layernorm.weight,
        table.NORM_EXPERTS: layer.pre_feedforward_layernorm_2.weight,
        table.NORM_AFTER_DENSE: layer.post_feedforward_layernorm_1.weight,
        table.NORM_AFTER_EXPERTS: layer.post_feedforward_layernorm_2.weight,
        table.NORM_AFTER: layer.post_feedforward_layernorm.weight,
        table.ROUTER: layer.router.proj.weight,
        table.ROUTER_SCALE: layer.router.scale,
        table.EXPERT_SCALE: layer.router.per_expert_scale,
    }


def _buffers(config: Config) -> dict[int, Tensor]:
    """Return the buffers of a pass by field: large enough for every layer, which use them one after another."""
    hidden = config.hidden_size
    dense = config.intermediate_size
    width = config.moe_intermediate_size
    keys = max(shape.kv_heads * shape.head_dim for shape in config.layers)
    queries = config.num_attention_heads * max(shape.head_dim for shape in config.layers)
    experts = config.num_experts
    k = config.top_k_experts
    floats = {
        table.X: hidden, table.Y: hidden, table.QUERIES: queries, table.NEW_KEYS: keys, table.RAW_VALUES: keys,
        table.NEW_VALUES: keys, table.ATTENDED: queries, table.GATES: dense, table.UPS: dense, table.DENSE: hidden,
        table.ROUTES: experts, table.WEIGHT: k, table.EXPERT_HIDDEN: 2 * k * width, table.SPARSE: hidden,
    }  # fmt: skip
    buffers = {field: torch.empty(1, size) for field, size in floats.items()}

    def rounded(inputs: int) -> Tensor:
        return torch.empty(-(-inputs // BLOCK) * ROW_BLOCK_BYTES, dtype=torch.uint8)

    buffers[table.ROUNDED] = rounded(max(hidden, queries, dense))
    buffers[table.ROUNDED_EXPERTS] = torch.cat([rounded(max(hidden, width)), *(rounded(width) for _ in range(k - 1))])
    buffers[table.INDEX] = torch.empty(k, dtype=torch.int64)
    return buffers
