"""A model with layers of the width of the 26B-A4B checkpoint, and its outputs."""

import json

import torch

from gesso.backends.torch import TorchBackend
from gesso.model.config import Config
from gesso.model.transformer import DiffusionGemma
from tests.backends import passes
from tests.gpu.device import DEVICE, DRY_RUN
from tests.tiny import CONFIG, randomise

# The layers of the 26B-A4B checkpoint, three of thirty, with a small vocabulary.
REAL = {
    "hidden_size": 2816, "intermediate_size": 2112, "moe_intermediate_size": 704, "num_experts": 128,
    "top_k_experts": 8, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "global_head_dim": 512,
    "num_global_key_value_heads": 2, "sliding_window": 1024, "num_hidden_layers": 3, "vocab_size": 32_768,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "max_position_embeddings": 262_144,
}  # fmt: skip
NARROW = {"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 64, "num_experts": 8,
          "top_k_experts": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
          "global_head_dim": 64, "sliding_window": 32, "vocab_size": 512}  # fmt: skip
PROMPT, CANVAS = (2500, 256) if not DRY_RUN else (80, 16)


def make_model(dtype: torch.dtype = torch.float32) -> DiffusionGemma:
    """Return a model with random weights of real width on the device."""
    raw = json.loads(json.dumps(CONFIG))
    raw["text_config"] |= REAL | (NARROW if DRY_RUN else {})
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with DEVICE:
            model = DiffusionGemma(Config.from_dict(raw))
    finally:
        torch.set_default_dtype(before)
    randomise(model, seed=0)
    generator = torch.Generator(DEVICE).manual_seed(0)
    with torch.no_grad():
        for scalar in (*model.encoder.layer_scalars, *model.decoder.layer_scalars):
            scalar.uniform_(0.8, 1.2, generator=generator)
        for name, weight in model.named_parameters():
            # As in a trained model, attention spreads over many keys and the router has clear preferences. With norms
            # of one, attention scores would differ by tens: softmax would pick one key, and rounding decide which.
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                weight.fill_(weight.numel() ** -0.25)
            elif name.endswith("router.proj.weight"):
                weight.mul_(50.0)
    return model


def outputs(model) -> list[torch.Tensor]:
    """Return the outputs of a backend or of the reference for a prompt, a canvas without and with self-conditioning, a
    commit, and the canvas again."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = NARROW["vocab_size"] if DRY_RUN else REAL["vocab_size"]
    prompt, canvas = (torch.randint(0, vocabulary, (1, n), generator=generator).to(DEVICE) for n in (PROMPT, CANVAS))
    if isinstance(model, TorchBackend):
        cache = model.model.new_cache(1, 4096)
        encode, denoise = (
            (lambda ids: passes.encode(model, ids, cache)),
            (lambda sc: passes.denoise(model, canvas, cache, sc)),
        )
    else:
        from transformers import DynamicCache

        kv = DynamicCache(config=model.config.text_config)

        def encode(ids):
            return model.model.encoder(input_ids=ids, past_key_values=kv).last_hidden_state

        def denoise(logits):
            return model(decoder_input_ids=canvas, past_key_values=kv, self_conditioning_logits=logits).logits

    found = []
    with torch.no_grad():
        for text in (prompt, canvas):
            found += [encode(text), first := denoise(None), denoise(first / 0.7)]
    return [tensor.float()[0] for tensor in found]


def errors(mine, expected):
    """Return the relative error of every token."""
    return torch.cat([(a - b).norm(dim=-1) / b.norm(dim=-1) for a, b in zip(mine, expected, strict=True)])
