"""Build the weights of recipes on a CPU, and models from them."""

from dataclasses import replace

import torch
from safetensors.torch import load_file

from gesso.checkpoint.parameters import assign, checkpoint_name, empty_model
from gesso.checkpoint.quantize.packed import Packed
from gesso.checkpoint.safetensors import read_header
from gesso.checkpoint.stored import Inventory


def inventory(directory):
    return Inventory({k: v for file in sorted(directory.glob("*.safetensors")) for k, v in read_header(file).items()})


def weights(recipes):
    """Return every parameter by name, as stored."""
    files = {part.file for recipe in recipes.values() for part in recipe.parts}
    tensors = {file: load_file(file) for file in files}
    return {name: recipe.build([tensors[p.file][p.name] for p in recipe.parts]) for name, recipe in recipes.items()}


def dense(weight):
    return weight.dense(torch.float32) if isinstance(weight, Packed) else weight.float()


def linears(name, weight):
    """Return the matrices of a parameter by the names that other tools give them."""
    if weight.ndim < 3:
        return {name: weight}
    stem, _, leaf = name.rpartition(".")
    halves = ("gate_proj", "up_proj") if leaf == "gate_up_proj" else (leaf,)
    return {
        f"{stem}.{expert}.{half}.weight": part
        for expert, both in enumerate(weight)
        for half, part in zip(halves, both.chunk(len(halves)), strict=True)
    }


def model_of(config, parameters, dtype=torch.float32):
    """Return the model with these weights. They keep their format."""
    model = empty_model(replace(config, quantization=None))
    for path, _ in list(model.named_parameters()):
        weight = parameters[checkpoint_name(path)]
        assign(model, path, weight if isinstance(weight, Packed) else weight.to(dtype))
    return model.eval()


def logits(model):
    """Return the logits of a canvas after a prompt, with self-conditioning: they depend on every matrix."""
    generator = torch.Generator().manual_seed(1)
    ids, canvas = (torch.randint(0, model.config.vocab_size, (1, n), generator=generator) for n in (7, 5))
    cache = model.new_cache(1, 16)
    with torch.no_grad():
        model.encode(ids, cache)
        return model.denoise(canvas, cache, previous_logits=model.denoise(canvas, cache))
