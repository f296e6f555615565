"""LoRA adapters give the same outputs in gesso, in `peft`, and merged into a checkpoint."""

import json
import os
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DiffusionGemmaForBlockDiffusion

from gesso import adapters
from gesso.adapters import TARGETS, LoraSettings, files
from gesso.adapters.lora import attached
from gesso.checkpoint import write
from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.quantize import convert
from gesso.checkpoint.source import open_source
from gesso.errors import CheckpointError, InputError
from tests import oracle, tiny
from tests.model.test_parity import ids, load_pair, steps

TIED = [7, 16, 18]  # together: sliding and global layers, one and several experts per token
UNTIED = 3
ALL = tuple(TARGETS)
SETTINGS = LoraSettings(rank=3, alpha=5.0, targets=ALL)
# Encoder and decoder without the vision tower, as a user of `peft` would write it.
EVERYTHING = (
    r"model\.(decoder|encoder\.language_model)\.layers\.\d+\.(self_attn|mlp|router)\.\w*proj"
    r"|model\.decoder\.self_conditioning\.\w+_proj"
)
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def fill(model, name="default", seed=0):
    """Fill all factors with random values, as if trained: a new adapter has zeros in B."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if f"_adapters.lora_{name}." in path:
                parameter.normal_(0.0, 0.1, generator=generator)


def outputs(model, previous=True):
    """Return encoder hidden states, and decoder logits without and with self-conditioning."""
    generator = torch.Generator().manual_seed(1)
    vocab, length = model.config.vocab_size, model.config.canvas_length
    prompt, canvas = (torch.randint(0, vocab, (2, n), generator=generator) for n in (9, length))
    cache = model.new_cache(2, 64)
    hidden = model.encode(prompt, cache)
    first = model.denoise(canvas, cache)
    return [hidden, first, model.denoise(canvas, cache, first.detach() / 0.7)] if previous else [hidden, first]


def distance(one, other):
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


def relative(one, other):
    return max(((a - b).norm() / a.norm()).item() for a, b in zip(one, other, strict=True))


def furthest(reference, model):
    """Return the largest difference between the outputs of the reference and the model."""
    pairs = steps(reference, model, ids(model_config(reference), 2, 11), canvases=1)
    return max((theirs - mine).abs().max().item() for _, theirs, mine in pairs)


def model_config(reference):
    from peft import PeftModel

    return reference.get_base_model() if isinstance(reference, PeftModel) else reference


class Bare:
    """A peft model with the attributes of the model inside that the parity helpers use."""

    def __init__(self, model):
        inner = model.get_base_model()
        self.model, self.config, self.get_base_model = inner.model, inner.config, lambda: inner
        self.call = model

    def __call__(self, **arguments):
        return self.call(**arguments)


def peft_trained(directory, seed, tie=False, **options):
    """Save an adapter made by `peft`, with random values. With `tie`, encoder and decoder have the same values."""
    from peft import LoraConfig, get_peft_model  # takes seconds, so only the process that runs this file imports it

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


def through_peft(tmp_path, adapter="adapter"):
    """Load the saved model and adapter with `transformers` and `peft`."""
    from peft import PeftModel

    base = DiffusionGemmaForBlockDiffusion.from_pretrained(tmp_path / "model").eval()
    return Bare(PeftModel.from_pretrained(base, tmp_path / adapter).eval())


# --- training -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*TIED, UNTIED])
def test_a_new_adapter_changes_no_output(tmp_path, seed):
    _, model = load_pair(tmp_path, seed)
    before = outputs(model)
    adapters.add(model, SETTINGS)
    assert all(map(torch.equal, before, outputs(model)))


@pytest.mark.parametrize("targets", [(target,) for target in TARGETS] + [tuple(TARGETS)], ids="+".join)
def test_exactly_the_tensors_of_the_adapter_are_trained(tmp_path, targets):
    _, model = load_pair(tmp_path, TIED[0])
    model.requires_grad_(True)
    adapters.add(model, LoraSettings(rank=2, targets=targets))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert trained and all("_adapters.lora_default." in name for name in trained)
    optimizer = torch.optim.SGD(trained.values(), lr=1e-2)
    for _ in range(3):  # A has no gradient in the first step, because B is zero
        optimizer.zero_grad()
        sum(output.square().sum() for output in outputs(model)).backward()
        optimizer.step()
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == trained.keys()


def test_exactly_the_chosen_experts_get_gradients(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    adapters.add(model, LoraSettings(rank=2, targets=("experts",)))
    fill(model)
    experts, router = model.decoder.layers[0].experts, model.decoder.layers[0].router
    x = torch.randn(1, model.config.hidden_size)
    index, weight, _ = router(x)
    experts(x, index, weight).square().sum().backward()
    for site in (experts.gate_up_proj_adapters, experts.down_proj_adapters):
        for factor in (site.acting.A, site.acting.B):
            reached = factor.grad.flatten(1).any(1).nonzero().flatten().tolist()
            assert reached == sorted(index[0][weight[0] > 0].tolist())


def test_factors_stay_float32_in_a_half_precision_model(tmp_path):
    _, model = load_pair(tmp_path, TIED[0], torch.bfloat16)
    adapters.add(model, SETTINGS)
    fill(model)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    hidden, logits, _ = outputs(model)
    assert hidden.dtype == torch.bfloat16 and logits.dtype == torch.float32


def test_the_same_seed_makes_the_same_adapter(tmp_path):
    made = []
    for directory, seed in (("a", 7), ("b", 7), ("c", 8)):
        _, model = load_pair(tmp_path / directory, TIED[0])
        adapters.add(model, SETTINGS, seed=seed)
        made.append(torch.cat([p.flatten() for p in model.parameters() if p.requires_grad]))
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_adapted_outputs_are_batch_invariant(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    adapters.add(model, SETTINGS)
    fill(model)
    prompt, canvas = torch.randint(0, 60, (2, 9)), torch.randint(0, 60, (2, 8))
    together, alone = model.new_cache(2, 64), model.new_cache(1, 64)
    model.encode(prompt, together)
    model.encode(prompt[1:], alone)
    assert torch.equal(model.denoise(canvas, together)[1], model.denoise(canvas[1:], alone)[0])


# --- merging ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", [(target,) for target in TARGETS] + [tuple(TARGETS)], ids="+".join)
def test_a_merged_adapter_equals_the_attached_one(tmp_path, targets):
    _, model = load_pair(tmp_path, TIED[1], near_identity=True)  # otherwise rounding errors grow per layer
    base = outputs(model)
    adapters.add(model, LoraSettings(rank=2, alpha=6.0, targets=targets))
    fill(model)
    unmerged = outputs(model)
    names = [name for name, _ in model.named_parameters() if "_adapters" not in name]
    adapters.merge(model)
    assert relative(unmerged, outputs(model)) < 1e-5 < 1e-3 < relative(base, unmerged)
    assert [name for name, _ in model.named_parameters()] == names and attached(model) == []


@pytest.mark.parametrize("seed", [*TIED, UNTIED])
def test_a_merged_checkpoint_loads_in_transformers(tmp_path, seed):
    _, model = load_pair(tmp_path, seed, near_identity=True)
    adapters.add(model, SETTINGS)
    fill(model)
    with torch.no_grad():
        unmerged = outputs(model)
    adapters.merge(model)
    write.save(model, tmp_path / "merged", source=tmp_path / "model")
    merged, report = DiffusionGemmaForBlockDiffusion.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert furthest(merged.eval(), model) < 1e-4
    again = load_weights(open_source(tmp_path / "merged"), model.device, torch.float32)
    assert relative(unmerged, outputs(again)) < 1e-5


def test_merging_is_rejected_while_another_adapter_is_attached(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    adapters.add(model, SETTINGS, "one")
    adapters.add(model, SETTINGS, "two")
    with pytest.raises(InputError, match="cannot merge 'one' while \\['two'\\]"):
        adapters.merge(model, "one")


# --- several adapters ---------------------------------------------------------------------------------------------


def test_adapters_are_switched_by_name(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    base = outputs(model)
    adapters.add(model, SETTINGS, "train")  # also the name of a method of torch modules
    fill(model, "train", seed=1)
    first = outputs(model)
    adapters.add(model, LoraSettings(rank=1, targets=("router", "experts")), "two")
    fill(model, "two", seed=2)
    second = outputs(model)
    assert attached(model) == ["train", "two"]
    assert min(distance(base, first), distance(base, second), distance(first, second)) > 1e-3
    for name, expected in (("train", first), (None, base), ("two", second), ("train", first)):
        adapters.activate(model, name)
        assert all(map(torch.equal, outputs(model), expected)), name


def test_invalid_and_unknown_names_are_rejected(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    adapters.add(model, SETTINGS, "one")
    for call, words in (
        (lambda: adapters.add(model, SETTINGS, "one"), "already has an adapter called 'one'"),
        (lambda: adapters.add(model, SETTINGS, "a.b"), "letters, digits"),
        (lambda: adapters.activate(model, "two"), "no adapter called 'two'; it has one"),
        (lambda: adapters.merge(model, "two"), "no adapter called 'two'"),
        (lambda: adapters.save(model, tmp_path / "x", SETTINGS, "two"), "no adapter called 'two'"),
    ):
        with pytest.raises(InputError, match=words):
            call()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"rank": 0}, "rank"),
        ({"rank": 2.5}, "rank"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"targets": ()}, "targets"),
        ({"targets": "attention"}, "tuple"),
        ({"targets": ("attention", "embeddings")}, "unknown adapter targets \\['embeddings'\\]"),
    ],
)
def test_invalid_lora_settings_are_rejected(options, words):
    with pytest.raises(InputError, match=words):
        LoraSettings(**options)


# --- the file format of peft --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*TIED, UNTIED])
def test_a_saved_adapter_gives_the_same_logits_in_peft(tmp_path, seed):
    _, model = load_pair(tmp_path, seed)
    adapters.add(model, SETTINGS)
    fill(model)
    adapters.save(model, tmp_path / "adapter", SETTINGS)
    theirs = through_peft(tmp_path)
    assert furthest(theirs, model) < 1e-4
    adapters.activate(model, None)
    assert furthest(theirs, model) > 1e-2, "the adapter does nothing"


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_alone_gives_the_same_logits_in_peft(tmp_path, target):
    _, model = load_pair(tmp_path, TIED[1])
    settings = LoraSettings(rank=2, targets=(target,))
    adapters.add(model, settings)
    fill(model)
    adapters.save(model, tmp_path / "adapter", settings)
    assert furthest(through_peft(tmp_path), model) < 1e-4


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


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("seed", [*TIED, UNTIED])
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


# --- invalid adapters ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a model without adapters, and a directory with an adapter for it."""
    directory = tmp_path_factory.mktemp("saved")
    _, model = load_pair(directory, TIED[0])
    adapters.add(model, SETTINGS)
    adapters.save(model, directory / "adapter", SETTINGS)
    adapters.merge(model)
    return model, directory / "adapter"


def broken(directory, change):
    config = json.loads((directory / files.CONFIG).read_text())
    tensors = load_file(directory / files.WEIGHTS)
    change(config, tensors)
    (directory / files.CONFIG).write_text(json.dumps(config))
    save_file(tensors, directory / files.WEIGHTS)


Q = "base_model.model.model.decoder.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda c, t: t.pop(Q), f"missing tensors: {re.escape(Q)}"),
        (lambda c, t: t.update({"base_model.model.lm_head.lora_A.weight": torch.zeros(3, 2)}), "surplus.*lm_head"),
        (lambda c, t: t.update({Q: t[Q][:, 1:].clone()}), f"{re.escape(Q)} has shape"),
        (lambda c, t: t.update({Q: t[Q] * float("nan")}), f"{re.escape(Q)} holds NaN"),
        (lambda c, t: c.update(target_modules=["embed_tokens"]), "target_modules: 'embed_tokens' matches nothing"),
        (lambda c, t: c["target_parameters"].append("experts.up"), "target_parameters: 'experts.up' matches nothing"),
        (lambda c, t: c.update(target_modules="(", target_parameters=[]), "target_modules"),
        (lambda c, t: c.update(target_modules=[1]), "target_modules"),
        (lambda c, t: c.update(target_modules=None, target_parameters=None), "no targets"),
        (lambda c, t: c.update(r=4), "has shape"),
        (lambda c, t: c.update(r="many"), "r = 'many'"),
        (lambda c, t: c.pop("lora_alpha"), "no lora_alpha"),
        (lambda c, t: c.update(peft_type="LOHA"), "LOHA"),
        (lambda c, t: c.update(use_dora=True), "use_dora"),
        (lambda c, t: c.update(rank_pattern={"q_proj": 2}), "rank_pattern"),
        (lambda c, t: c.update(modules_to_save=["lm_head"]), "modules_to_save"),
        (lambda c, t: c.update(init_lora_weights="pissa"), "init_lora_weights"),
        (lambda c, t: c.update(target_modules=[{}]), "target_modules"),
        (lambda c, t: c.update(target_modules={"q_proj": 1}), "target_modules"),
        (lambda c, t: c.update(target_parameters=5), "target_parameters"),
        (lambda c, t: c.update(exclude_modules=5), "exclude_modules"),
        (lambda c, t: c.update(target_modules="q" * 100_000), "target_modules"),
        (lambda c, t: c.update(r=10**400, use_rslora=True), "r = "),
        (lambda c, t: c.update(lora_alpha=10**400), "alpha"),
        (lambda c, t: c.update(lora_alpha=float("nan")), "alpha"),
        (lambda c, t: t.update({Q: t[Q].to(torch.int16)}), f"{re.escape(Q)} is stored as int16"),
        (lambda c, t: t.update({Q: t[Q].to(torch.float8_e4m3fn)}), f"{re.escape(Q)} is stored as float8_e4m3fn"),
    ],
)
def test_an_invalid_adapter_is_rejected_by_name_and_not_attached(tmp_path, saved, change, words):
    model, directory = saved
    shutil.copytree(directory, tmp_path / "adapter")
    broken(tmp_path / "adapter", change)
    with pytest.raises(CheckpointError, match=words):
        adapters.load(model, tmp_path / "adapter", "wrong")
    assert attached(model) == []


def test_a_pattern_that_backtracks_exponentially_is_rejected_in_time(tmp_path, saved, monkeypatch):
    monkeypatch.setattr(files, "PATTERN_SECONDS", 1.0)
    model, directory = saved
    for field in ("target_modules", "target_parameters", "exclude_modules"):
        shutil.copytree(directory, tmp_path / field)
        broken(tmp_path / field, lambda c, t, field=field: c.update({field: "((.+)+)+(.*.*)*!"}))
        with pytest.raises(CheckpointError, match=f"{field}.*takes longer than 1 s"):
            adapters.load(model, tmp_path / field, "slow")
    assert attached(model) == []


def test_a_named_pipe_in_an_adapter_is_rejected_without_waiting(tmp_path, saved):
    model, directory = saved
    for name in (files.CONFIG, files.WEIGHTS):
        shutil.copytree(directory, tmp_path / name)
        (tmp_path / name / name).unlink()
        os.mkfifo(tmp_path / name / name)
        with pytest.raises(CheckpointError, match=f"{name} cannot be read: it is a named pipe"):
            adapters.load(model, tmp_path / name, "piped")


def test_saving_follows_no_planted_link(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    adapters.add(model, SETTINGS)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".adapter.partial").symlink_to(tmp_path / "elsewhere")
    adapters.save(model, tmp_path / "adapter", SETTINGS)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (tmp_path / "adapter" / files.WEIGHTS).is_file()


def test_an_adapter_of_another_model_is_rejected(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    peft_trained(tmp_path / "adapter", TIED[1])
    with pytest.raises(CheckpointError, match="missing tensors|surplus tensors|has shape"):
        adapters.load(model, tmp_path / "adapter", "theirs")


def test_missing_and_damaged_files_are_named(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    peft_trained(tmp_path / "adapter", TIED[0])
    weights = tmp_path / "adapter" / files.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=f"{files.WEIGHTS} is corrupt"):
        adapters.load(model, tmp_path / "adapter", "theirs")
    weights.unlink()
    with pytest.raises(CheckpointError, match=f"{files.WEIGHTS} does not exist"):
        adapters.load(model, tmp_path / "adapter", "theirs")
    shutil.rmtree(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=files.CONFIG):
        adapters.load(model, tmp_path / "adapter", "theirs")


def test_saving_rejects_existing_directories_and_other_settings(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    adapters.add(model, SETTINGS)
    with pytest.raises(InputError, match="not empty"):
        adapters.save(model, tmp_path / "model", SETTINGS)
    with pytest.raises(InputError, match="rank 3 and alpha 5.0"):
        adapters.save(model, tmp_path / "adapter", LoraSettings(rank=3, alpha=6.0, targets=ALL))


def test_saving_a_model_with_attached_adapters_is_rejected(tmp_path):
    _, model = load_pair(tmp_path, TIED[0])
    adapters.add(model, SETTINGS)
    with pytest.raises(InputError, match="merge one first"):
        write.save(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    adapters.merge(model)
    write.save(model, tmp_path / "out")
