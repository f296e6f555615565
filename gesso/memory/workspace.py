"""Upper bound of the workspace: memory that a pass of the engine allocates beside weights and KV cache.

Derived from the buffers of the kernels; tests compare the constants. For the 26B shape in bfloat16, with 2,048
tokens of text, the terms in GB are:

  canvases                       1      8     32
  CUDA context                 0.50   0.50   0.50
  layers                       0.27   0.48   1.21
  state of the canvases        0.00   0.03   0.14
  vocabulary end               0.16   1.29   5.16
  or one request's logits      1.34   1.34   1.34    (the largest of the three counts)
  or the largest image         0.49   0.49   0.49
  captured graphs              0.43   1.77   6.37
  bound                        2.55   4.14  13.39
  measured on an H200             -   3.5   10.6     (reserved beside weights and cache, 0.5 GB for the context)

A pass of a new shape first runs eagerly in one memory pool, then as a graph in a second pool that all graphs share.
Layers and vocabulary end therefore count twice. The logits of one request and the vision pass of an image are never
part of a graph.
"""

from gesso.model.config import Config, LayerShape

CONTEXT_BYTES = 500_000_000  # CUDA context, loaded kernels, libraries
# float32 [C, V] at once: the logits, and temporaries of their hashes, log-probabilities and entropies
LOGITS_COPIES = 5
CHUNK_BYTES = 64 * 2**20  # of float32 logits at once, without kernels (`backends/torch.py`)
# The narrowest tile of the vocabulary kernel (`backends/cuda/kernels/vocab.py`), with 4 floats per row.
TILE_COLUMNS = 128
PADDED_COLUMNS = 256  # the widest tile: stored logits are padded to it
SOFT_SPLITS = 6  # partial sums of the soft embedding (`backends/cuda/kernels/soft.py`)
ROUTER_SPLITS = 11  # partial sums of the router's scores (`backends/cuda/kernels/rows.py`)
IMAGE_TOKENS = 1120  # soft tokens of the largest image
SEEN_BYTES = 128 * 10**6  # of the features of images, which are kept in host memory (`engine/seen.py`)
KEY_SPLITS = {False: 4, True: 2}  # partial outputs of attention, by whether the head dimension exceeds 256


def workspace_bytes(
    config: Config, batch: int, prefill: int, canvas_length: int, value_bytes: int = 2, *, images: bool = False
) -> int:
    """Return the most bytes that a pass over `batch` canvases and `prefill` tokens of text needs.

    `value_bytes` is the size of one value in the dtype of the activations. `images`: whether the model reads images,
    which are never cut.
    """
    prefill = max(prefill, IMAGE_TOKENS) if images else prefill
    canvas_tokens = batch * canvas_length
    layer = max(_attention_values(config, shape) for shape in config.layers)
    layer = value_bytes * max(layer, _feedforward_values(config)) + 4 * ROUTER_SPLITS * config.num_experts
    # The soft embeddings of the last and the next step, and the hidden states from which logprobs are computed.
    state = 3 * config.hidden_size * value_bytes
    layers, vocabulary = (canvas_tokens + prefill) * layer, _vocabulary_bytes(config, canvas_tokens, value_bytes)
    logits = LOGITS_COPIES * 4 * canvas_length * config.vocab_size
    graphs = layers + vocabulary if value_bytes <= 2 else 0  # float32 runs on CPUs, without graphs
    seeing = _vision_bytes(config, value_bytes) if images else 0
    return CONTEXT_BYTES + layers + canvas_tokens * state + max(vocabulary, logits, seeing) + graphs


def _vision_bytes(config: Config, value_bytes: int) -> int:
    """Return the bytes of a vision pass over the largest image.

    Values per patch: residual stream, its norm and temporaries, beside the gates and ups of the MLP or the queries,
    keys and values of attention, which are normed and rotated.
    """
    vision = config.vision
    queries = vision.num_attention_heads * vision.head_dim
    mlp = 6 * vision.hidden_size + 4 * vision.intermediate_size
    patches = IMAGE_TOKENS * vision.pooling_kernel_size**2
    return patches * value_bytes * max(mlp, 4 * vision.hidden_size + 12 * queries)


def _attention_values(config: Config, shape: LayerShape) -> int:
    """Return the values per token: residual stream, its norm, projections, normed projections, output and its parts."""
    query, key = config.num_attention_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return 4 * config.hidden_size + 2 * query + 4 * key + (1 + KEY_SPLITS[shape.head_dim > 256]) * query


def _feedforward_values(config: Config) -> int:
    """Return the values per token: residual stream, its three norms, gate and up of the dense MLP, and hidden units and
    output of each chosen expert."""
    dense = 3 * config.intermediate_size
    experts = config.top_k_experts * (config.moe_intermediate_size + config.hidden_size)
    return 6 * config.hidden_size + dense + experts


def _vocabulary_bytes(config: Config, tokens: int, value_bytes: int) -> int:
    """Return the bytes from hidden states to predictions.

    These are stored logits, four statistics per tile, partial sums and the soft embedding.
    """
    if value_bytes > 2:  # float32 has no kernel
        return LOGITS_COPIES * max(CHUNK_BYTES, 4 * config.vocab_size)
    padded = -(-config.vocab_size // PADDED_COLUMNS) * PADDED_COLUMNS
    tiles = -(-config.vocab_size // TILE_COLUMNS)
    partial = 4 * SOFT_SPLITS * config.hidden_size
    return tokens * (value_bytes * (padded + config.hidden_size) + 4 * 4 * tiles + partial)
