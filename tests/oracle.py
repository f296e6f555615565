"""Small random models and checkpoints of the reference implementation, `transformers`."""

import random
from pathlib import Path

import torch
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    DynamicCache,
    Gemma4VisionConfig,
)

EOS = 1


def random_config(seed: int) -> DiffusionGemmaConfig:
    """Return a random shape: depth, heads, experts, window, global layers, and tied or untied embeddings."""
    rng = random.Random(seed)
    kv_heads = rng.choice([1, 2])
    heads = kv_heads * rng.choice([1, 2, 3]) * 2
    layers = rng.choice([1, 2, 3, 4])
    experts = rng.choice([2, 4, 7])
    tied = rng.random() < 0.7
    text = DiffusionGemmaTextConfig(
        vocab_size=rng.choice([67, 96, 160]),
        hidden_size=rng.choice([24, 32, 40]),
        intermediate_size=rng.choice([20, 48]),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=rng.choice([8, 12, 16]),
        global_head_dim=rng.choice([8, 16, 24]),
        num_global_key_value_heads=rng.choice([None, 1, kv_heads]),
        sliding_window=rng.choice([4, 7, 8, 16]),
        layer_types=[rng.choice(["sliding_attention", "full_attention"]) for _ in range(layers - 1)]
        + ["full_attention"],
        num_experts=experts,
        top_k_experts=rng.randint(1, experts),
        moe_intermediate_size=rng.choice([8, 16]),
        tie_word_embeddings=tied,
        max_position_embeddings=4096,
        use_bidirectional_attention=rng.choice([None, "vision"]),
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": rng.choice([100.0, 10_000.0])},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 1_000_000.0,
                "partial_rotary_factor": rng.choice([0.25, 0.5, 1.0]),
            },
        },
    )
    vision = Gemma4VisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        head_dim=16, patch_size=4, position_embedding_size=16,
    )  # fmt: skip
    length = rng.choice([4, 8, 12])
    return DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=length, tie_word_embeddings=tied)


def seeing_config(seed: int) -> DiffusionGemmaConfig:
    """Return a random shape with a tower that matters: images have tokens in the vocabulary."""
    rng, config = random.Random(f"vision {seed}"), random_config(seed)
    config.image_token_id, config.boi_token_id, config.eoi_token_id = 3, 4, 5
    kv_heads = rng.choice([1, 2])
    config.vision_config = Gemma4VisionConfig(
        hidden_size=rng.choice([16, 24, 40]),
        intermediate_size=rng.choice([12, 32]),
        num_hidden_layers=rng.choice([1, 2, 3]),
        num_attention_heads=kv_heads * rng.choice([1, 2]),
        num_key_value_heads=kv_heads,
        head_dim=rng.choice([4, 8, 12]),
        patch_size=rng.choice([2, 4]),
        pooling_kernel_size=rng.choice([2, 3]),
        position_embedding_size=24,
        standardize=rng.random() < 0.5,
        use_clipped_linears=rng.random() < 0.5,
        rope_parameters={"rope_type": "axial", "rope_theta": rng.choice([10.0, 100.0])},
    )
    return config


def reference(
    seed: int, near_identity: bool = False, config: DiffusionGemmaConfig | None = None
) -> DiffusionGemmaForBlockDiffusion:
    """Return a model in which every tensor matters: none is zero or one, and encoder and decoder scalars differ.

    With `near_identity`, accepted tokens tend to stay, so canvases converge and rounding errors do not grow from step
    to step. Otherwise a hundred self-conditioned steps amplify rounding errors so much that even two variants of the
    reference disagree.
    """
    torch.manual_seed(seed)
    model = DiffusionGemmaForBlockDiffusion(config or random_config(seed)).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith(("inv_freq", "embed_scale")):
                continue
            if tensor.ndim == 0:  # bounds of clipping
                tensor.fill_(-0.7 if name.endswith("min") else 0.8)
            elif tensor.ndim >= 2:
                tensor.normal_(0.0, 0.1)
            else:  # norms, router scales, layer scalars
                tensor.uniform_(0.6, 1.2)
        if near_identity:
            for name, weight in model.named_parameters():
                if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
                    weight.mul_(0.15)
            model.lm_head.weight.copy_(model.model.decoder.embed_tokens.weight)
            model.model.decoder.norm.weight.mul_(2.5)
    return model


def checkpoint(
    directory: Path,
    seed: int,
    near_identity: bool = False,
    config: DiffusionGemmaConfig | None = None,
    **options: object,
) -> DiffusionGemmaForBlockDiffusion:
    """Save a reference model to a directory and return it."""
    model = reference(seed, near_identity, config)
    model.save_pretrained(directory, **options)
    return model


def new_cache(model: DiffusionGemmaForBlockDiffusion) -> DynamicCache:
    return DynamicCache(config=model.config.text_config)


def picture(config, rows, columns):
    """Return the patches of a random image of so many soft tokens, as the reference takes them and as we do."""
    side = config.pooling_kernel_size
    pixels = torch.randint(0, 256, (rows * columns * side**2, 3 * config.patch_size**2), dtype=torch.uint8)
    grid = torch.meshgrid(torch.arange(columns * side), torch.arange(rows * side), indexing="xy")
    return (pixels.float() / 255, torch.stack(grid, -1).flatten(0, 1)), (pixels, rows * side, columns * side)


def padded(pictures):
    """Return the images of a batch in the form of the reference, which pads them to the same number of patches."""
    most = max(len(pixels) for pixels, _ in pictures)
    values = [torch.nn.functional.pad(pixels, (0, 0, 0, most - len(pixels))) for pixels, _ in pictures]
    places = [torch.nn.functional.pad(places, (0, 0, 0, most - len(places)), value=-1) for _, places in pictures]
    return torch.stack(values), torch.stack(places)
