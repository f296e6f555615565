"""Names of tensors in GGUF files, as llama.cpp's converter gives them."""

import re
from collections.abc import Mapping
from types import MappingProxyType

ARCHITECTURE = "diffusion-gemma"
ROPE_FREQUENCIES = "rope_freqs.weight"  # factors of the global layers' angles; no parameter

_TOP: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "embed_tokens.weight": ("token_embd.weight",),
        "norm.weight": ("output_norm.weight",),
        # Files from before the converter was merged (llama.cpp #24427) have the second name.
        "self_conditioning.pre_norm.weight": ("self_cond_pre_norm.weight", "self_cond_norm.weight"),
        "self_conditioning.gate_proj.weight": ("self_cond_gate.weight",),
        "self_conditioning.up_proj.weight": ("self_cond_up.weight",),
        "self_conditioning.down_proj.weight": ("self_cond_down.weight",),
    }
)
_LAYER: Mapping[str, str] = MappingProxyType(
    {
        "self_attn.q_proj.weight": "attn_q.weight",
        "self_attn.k_proj.weight": "attn_k.weight",
        "self_attn.v_proj.weight": "attn_v.weight",
        "self_attn.o_proj.weight": "attn_output.weight",
        "self_attn.q_norm.weight": "attn_q_norm.weight",
        "self_attn.k_norm.weight": "attn_k_norm.weight",
        "input_layernorm.weight": "attn_norm.weight",
        "post_attention_layernorm.weight": "post_attention_norm.weight",
        "pre_feedforward_layernorm.weight": "ffn_norm.weight",
        "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
        "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
        "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
        "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
        "mlp.gate_proj.weight": "ffn_gate.weight",
        "mlp.up_proj.weight": "ffn_up.weight",
        "mlp.down_proj.weight": "ffn_down.weight",
        "router.proj.weight": "ffn_gate_inp.weight",
        "router.scale": "ffn_gate_inp.scale",
        "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight",
        # A scale of the output of each expert. In NVFP4 files, that of the quantization is multiplied in.
        "router.per_expert_scale": "ffn_down_exps.scale",
        "layer_scalar": "layer_output_scale.weight",
    }
)


def names(parameter: str) -> tuple[str, ...]:
    """Return the name of a parameter, given by its name in a Hugging Face checkpoint, then names it has in some files.

    Early files lack the scalars of the encoder, which equal those of the decoder.
    """
    if scalar := re.fullmatch(r"model\.encoder\.language_model\.layers\.(\d+)\.layer_scalar", parameter):
        layer = scalar[1]
        return f"blk.{layer}.enc_layer_output_scale.weight", f"blk.{layer}.layer_output_scale.weight"
    if weight := re.fullmatch(r"model\.decoder\.layers\.(\d+)\.(.+)", parameter):
        layer, leaf = weight.groups()
        return (f"blk.{layer}.{_LAYER[leaf]}",)
    return _TOP[parameter.removeprefix("model.decoder.")]


def halves(name: str) -> tuple[str, str]:
    """Return the names of gate and up experts in files that do not fuse them."""
    return name.replace("gate_up_exps", "gate_exps"), name.replace("gate_up_exps", "up_exps")


def scale(name: str) -> str:
    """Return the name of the scale that a weight is multiplied by, if the file has one."""
    return name.removesuffix("weight") + "scale"
