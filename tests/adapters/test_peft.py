"""The file format of peft: adapters of gesso and of `peft` give the same outputs in both."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import DiffusionGemmaForBlockDiffusion

from gesso import adapters
from gesso.adapters import LoraSettings, files
from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.quantize import convert
from gesso.checkpoint.source import open_source
from gesso.errors import InputError
from tests import oracle, tiny
from tests.adapters.test_adapters import (
    ALL,
    SETTINGS,
    TIED,
    UNTIED,
    fill,
    furthest,
    outputs,
    relative,
)
from tests.model.test_parity import load_pair, steps

# Encoder and decoder without the vision tower, as a user of `peft` would write it.
EVERYTHING = (
    r"model\.(decoder|encoder\.language_model)\.layers\.\d+\.(self_attn|mlp|router)\.\w*proj"
    r"|model\.decoder\.self_conditioning\.\w+_proj"
)
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]


class Bare:
    """A peft model with the attributes of the model inside that the parity helpers use."""

    def __init__(self, model):
        inner = model.get_base_model()
        self.model, self.config, self.get_base_model = inner.model, inner.config, lambda: inner
        self.call = model

    def __call__(self, **arguments):
        return self.call(**arguments)


def through_peft(tmp_path, adapter="adapter"):
    """Load the saved model and adapter with `transformers` and `peft`."""
    from peft import PeftModel

    base = DiffusionGemmaForBlockDiffusion.from_pretrained(tmp_path / "model").eval()
    return Bare(PeftModel.from_pretrained(base, tmp_path / adapter).eval())


def peft_trained(directory, seed, tie=False, **options):
    """Save an adapter made by `peft`, with random values. With `tie`, encoder and decoder have the same values."""
    from peft import LoraConfig, get_peft_model  # takes seconds, so only this file imports it

    options = {"target_modules": EVERYTHING, "target_parameters": EXPERTS, "r": 2, "lora_alpha": 3, **options}
    model = get_peft_model(oracle.reference(seed), LoraConfig(init_lora_weights=False, **options)).eval()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            if "lora_" in name:
                parameter.normal_(0.0, 0.1)
        for name, parameter in parameters.items():
            if tie and "lora_" in name and "encoder.language_model" in name:
                parameter.copy_(parameters[name.replace("encoder.language_model", "decoder")])
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("seed", [TIED[0], UNTIED])
def test_a_saved_adapter_gives_the_same_logits_in_peft(tmp_path, seed):
    _, model = load_pair(tmp_path, seed)
    adapters.add(model, SETTINGS)
    fill(model)
    adapters.save(model, tmp_path / "adapter", SETTINGS)
    theirs = through_peft(tmp_path)
    assert furthest(theirs, model) < 1e-4
    adapters.activate(model, None)
    assert furthest(theirs, model) > 1e-2, "the adapter does nothing"


@pytest.mark.parametrize("seed", [TIED[0], UNTIED])
def test_a_loaded_adapter_equals_the_saved_one(tmp_path, seed):
    _, model = load_pair(tmp_path, seed)
    adapters.add(model, SETTINGS)
    fill(model)
    adapters.save(model, tmp_path / "adapter", SETTINGS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "model"]  # and no partial directory
    _, other = load_pair(tmp_path / "other", seed)
    assert adapters.load(other, tmp_path / "adapter", "again") == SETTINGS
    assert all(map(torch.equal, outputs(model), outputs(other)))
    assert not any(parameter.requires_grad for parameter in other.parameters())
    assert (other.encoder.layers is other.decoder.layers) == (seed != UNTIED)
    adapters.save(other, tmp_path / "copy", SETTINGS, "again")
    first, second = (load_file(tmp_path / name / files.WEIGHTS) for name in ("adapter", "copy"))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_an_adapter_survives_the_way_through_peft_and_back(tmp_path):
    """Rank 16 and alpha 32 on all matrices: `peft` loads it, saves it again, and gesso loads that."""
    settings = LoraSettings(rank=16, alpha=32.0, targets=ALL)
    _, model = load_pair(tmp_path, TIED[0], near_identity=True)
    adapters.add(model, settings)
    fill(model)
    adapters.save(model, tmp_path / "adapter", settings)
    theirs = through_peft(tmp_path)
    assert furthest(theirs, model) < 1e-4
    theirs.call.save_pretrained(tmp_path / "back")
    _, again = load_pair(tmp_path / "again", TIED[0], near_identity=True)
    assert adapters.load(again, tmp_path / "back", "back") == settings
    assert again.is_tied and all(map(torch.equal, outputs(model), outputs(again)))


def test_an_adapter_of_a_quantized_base_loads_in_peft_on_the_original(tmp_path):
    """The file holds the factors alone, so it does not depend on the format of the base."""
    tiny.make(tmp_path / "model")
    convert.quantize(tmp_path / "model", tmp_path / "packed", "int4")
    packed, model = (
        load_weights(open_source(tmp_path / name), torch.device("cpu"), torch.float32) for name in ("packed", "model")
    )
    adapters.add(packed, SETTINGS)
    fill(packed)
    adapters.save(packed, tmp_path / "adapter", SETTINGS)
    assert {tensor.dtype for tensor in load_file(tmp_path / "adapter" / files.WEIGHTS).values()} == {torch.float32}
    adapters.load(model, tmp_path / "adapter", "default")
    theirs = through_peft(tmp_path)
    prompt = torch.randint(3, 300, (2, 11))
    pairs = [(theirs, mine) for _, theirs, mine in steps(theirs, model, prompt, canvases=1)]
    assert relative(*zip(*pairs, strict=True)) < 1e-4
    again = load_weights(open_source(tmp_path / "packed"), torch.device("cpu"), torch.float32)
    adapters.load(again, tmp_path / "adapter", "default")
    assert all(map(torch.equal, outputs(packed), outputs(again)))


def test_a_loaded_adapter_can_be_trained_further(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    adapters.add(model, SETTINGS)
    adapters.save(model, tmp_path / "adapter", SETTINGS)
    _, other = load_pair(tmp_path / "other", TIED[0])
    adapters.load(other, tmp_path / "adapter", "again", trainable=True)
    assert [n for n, p in other.named_parameters() if p.requires_grad] == [
        n.replace("default", "again") for n, p in model.named_parameters() if p.requires_grad
    ]


@pytest.mark.parametrize(("seed", "tie"), [(TIED[0], True), (TIED[1], False), (UNTIED, True)])
def test_a_peft_adapter_gives_the_same_logits_in_gesso(tmp_path, seed, tie):
    """`peft` trains separate factors for encoder and decoder, which gesso keeps separate."""
    _, model = load_pair(tmp_path, seed)
    theirs = peft_trained(tmp_path / "adapter", seed, tie)
    settings = adapters.load(model, tmp_path / "adapter", "theirs")
    assert settings == LoraSettings(rank=2, alpha=3, targets=ALL)
    assert furthest(Bare(theirs), model) < 1e-4


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": r".*language_model.*\.(q_proj|v_proj)", "target_parameters": None},
        {"target_modules": r"model\.decoder\.layers\.\d+\.self_attn\.\w+_proj", "target_parameters": None},
        {"target_modules": [], "target_parameters": ["experts.gate_up_proj"]},
        {"target_modules": [], "target_parameters": ["decoder.layers.0.experts.down_proj"]},
        {"target_modules": ["q_proj", "o_proj"], "exclude_modules": r".*vision.*", "target_parameters": None},
        {"target_modules": ["router.proj"], "use_rslora": True, "target_parameters": EXPERTS},
        {"target_modules": "all-linear", "target_parameters": None},
    ],
    ids=["encoder", "decoder", "gate_up", "one layer's down", "some projections", "rslora", "all-linear"],
)
def test_every_form_of_peft_targets_loads(tmp_path, options):
    _, model = load_pair(tmp_path, TIED[1])
    theirs = peft_trained(tmp_path / "adapter", TIED[1], **options)
    settings = adapters.load(model, tmp_path / "adapter", "theirs")
    assert furthest(Bare(theirs), model) < 1e-4
    adapters.save(model, tmp_path / "copy", settings, "theirs")
    assert furthest(through_peft(tmp_path, "copy"), model) < 1e-4


def test_an_adapter_that_differs_between_encoder_and_decoder_is_not_merged(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    peft_trained(tmp_path / "adapter", TIED[0])
    adapters.load(model, tmp_path / "adapter", "theirs")
    before = outputs(model)
    with pytest.raises(InputError, match="model.decoder.layers.0.* and model.encoder.* differently"):
        adapters.merge(model, "theirs")
    assert all(map(torch.equal, before, outputs(model)))


def test_a_tied_adapter_stays_tied_beside_an_untied_one(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    adapters.add(model, SETTINGS, "ours")
    fill(model, "ours")
    ours = outputs(model)
    peft_trained(tmp_path / "adapter", TIED[0])
    adapters.load(model, tmp_path / "adapter", "theirs")
    adapters.add(model, LoraSettings(rank=1), "late")
    fill(model, "late")
    adapters.save(model, tmp_path / "late", LoraSettings(rank=1), "late")
    stored = load_file(tmp_path / "late" / files.WEIGHTS)
    for name, tensor in stored.items():
        assert torch.equal(tensor, stored[name.replace("encoder.language_model", "decoder")]), name
    adapters.activate(model, "ours")
    assert all(map(torch.equal, ours, outputs(model)))
