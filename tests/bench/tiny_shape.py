"""The shape of a model that is measured in about a second."""

TINY = {
    "vocab_size": 384, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16, "num_global_key_value_heads": 2, "num_experts": 4,
    "top_k_experts": 2, "moe_intermediate_size": 16, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
