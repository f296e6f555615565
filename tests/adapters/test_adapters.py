"""LoRA adapters give the same outputs in gesso, in `peft`, and merged into a checkpoint."""

import pytest
import torch
from transformers import DiffusionGemmaForBlockDiffusion

from gesso import adapters
from gesso.adapters import TARGETS, LoraSettings
from gesso.adapters.sites import attached
from gesso.checkpoint import write
from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.source import open_source
from gesso.errors import InputError
from tests.model.test_parity import ids, load_pair, steps

TIED = [7, 16, 18]  # together: sliding and global layers, one and several experts per token
UNTIED = 3
ALL = tuple(TARGETS)
SETTINGS = LoraSettings(rank=3, alpha=5.0, targets=ALL)


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
    return reference.get_base_model() if hasattr(reference, "get_base_model") else reference


# --- training -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [TIED[0], UNTIED])
def test_a_new_adapter_changes_no_output(tmp_path, seed):
    _, model = load_pair(tmp_path, seed)
    before = outputs(model)
    adapters.add(model, SETTINGS)
    assert all(map(torch.equal, before, outputs(model)))


@pytest.mark.parametrize("targets", [("attention",), ("experts",), tuple(TARGETS)], ids="+".join)
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
    assert index is None, "all experts run"
    chosen = weight[0].nonzero().flatten().tolist()
    experts(x, index, weight).square().sum().backward()
    for site in (experts.gate_up_proj_adapters, experts.down_proj_adapters):
        for factor in (site.active_lora.A, site.active_lora.B):
            reached = factor.grad.flatten(1).any(1).nonzero().flatten().tolist()
            assert reached == chosen


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


@pytest.mark.parametrize("targets", [("router",), tuple(TARGETS)], ids="+".join)
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


@pytest.mark.parametrize("seed", [TIED[1], UNTIED])
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
