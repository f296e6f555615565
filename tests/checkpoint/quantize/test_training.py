"""Training on quantized weights."""

import pytest
import torch

from gesso import adapters
from gesso.adapters.tied import split_encoder
from gesso.errors import InputError
from gesso.train.recipe import load as load_recipe
from gesso.train.run import train
from tests.checkpoint.quantize.test_convert import load, logits, plain


def test_adapter_on_quantized_weights_gets_dequantized_gradients(quantized):
    packed = load(quantized[1])
    before, gradients = logits(packed), []
    ids = torch.randint(0, 384, (1, 12))
    for model in (packed, plain(packed)):
        adapters.add(model, adapters.LoraSettings(rank=2, targets=tuple(adapters.TARGETS)), "small")
        assert torch.equal(logits(model), before), "B is initially zero"
        cache = model.new_cache(1, 16)
        model.encode(ids[:, :4], cache)
        torch.nn.functional.cross_entropy(model.denoise(ids[:, 4:], cache)[0], ids[0, 4:]).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert len(gradients[0]) > 20
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradient, gradients[1][name]) for name, gradient in gradients[0].items())


def test_adapter_on_quantized_weights_is_saved_and_loaded_but_not_merged(quantized, tmp_path):
    settings = adapters.LoraSettings(rank=2, targets=tuple(adapters.TARGETS))
    model, again = load(quantized[1]), load(quantized[1])
    adapters.add(model, settings)
    for name, parameter in model.named_parameters():
        if name.endswith(".B"):
            parameter.data.normal_(0, 0.1)
    adapters.save(model, tmp_path / "adapter", settings)
    adapters.load(again, tmp_path / "adapter", "default")
    assert torch.equal(logits(again), logits(model))
    with pytest.raises(InputError, match="merge.*quantize"):
        adapters.merge(again)


def test_recipe_trains_an_adapter_but_rejects_quantized_weights(quantized, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    recipe = tmp_path / "recipe.toml"
    whole = (
        f'[model]\npath = "{quantized[1]}"\n[data]\nfiles = ["{tmp_path}/rows.jsonl"]\nmax_length = 300\n'
        f'[run]\nout = "{tmp_path}/out"\nsteps = 1\nbatch_size = 1\n'
    )
    recipe.write_text(whole)
    with pytest.raises(InputError, match=f"quantized to {quantized[0]} cannot be trained.*lora"):
        train(load_recipe(recipe))
    recipe.write_text(whole + "[lora]\nrank = 2\n")
    seen = []
    train(load_recipe(recipe), report=seen.append)
    assert len(seen) == 1
    adapters.load(load(quantized[1]), tmp_path / "out" / "adapter", "learnt")


def test_split_encoder_and_decoder_share_packed_weights(quantized):
    model = load(quantized[1])
    before = logits(model)
    split_encoder(model)
    encoder, decoder = (stack.layers[0] for stack in (model.encoder, model.decoder))
    assert encoder is not decoder
    assert encoder.self_attn.q_proj.weight is decoder.self_attn.q_proj.weight
    assert encoder.experts.down_proj is decoder.experts.down_proj
    assert torch.equal(logits(model), before)
