"""Rows with images: reading them, the loss and its gradients, and whole runs.

S text, C canvas.
"""

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import gesso
from gesso import Image
from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.parameters import checkpoint_name
from gesso.checkpoint.source import open_source
from gesso.errors import InputError
from gesso.images.tokens import blocks
from gesso.model.vision import Vision
from gesso.train.batch import collate, corrupt
from gesso.train.data import Example
from gesso.train.objective import Objective
from gesso.train.recipe import ObjectiveSettings, load
from gesso.train.run import train
from tests import oracle
from tests.tiny import make
from tests.train.conftest import watched
from tests.train.datasets import EOS
from tests.train.test_image_rows import asked, picture
from tests.train.test_trainer import losses

CPU = torch.device("cpu")


# --- the objective --------------------------------------------------------------------------------------------------


@pytest.fixture(params=[2, 7])  # one of them has windows shorter than its images
def pair(request, tmp_path):
    config = oracle.seeing_config(request.param)
    config.tie_word_embeddings = True
    config.text_config.use_bidirectional_attention = "vision"
    reference = oracle.checkpoint(tmp_path / "model", request.param, config=config)
    return reference, load_weights(open_source(tmp_path / "model"), CPU, torch.float32)


def drawn(reference, lengths, sizes, response):
    """Return an example and its images as the reference takes them: texts with an image after each but the last."""
    config, tokens, images, starts, theirs = reference.config, [], [], [], []
    for length, size in zip(lengths, [*sizes, None], strict=True):
        tokens += torch.randint(6, config.text_config.vocab_size, (length,)).tolist()
        if size is not None:
            given, (pixels, rows, columns) = oracle.picture(config.vision_config, *size)
            theirs.append(given)
            images.append(Image(pixels.numpy(), rows, columns, size[0] * size[1]))
            starts.append(len(tokens) + 1)
            tokens += [config.boi_token_id, *[config.image_token_id] * images[-1].tokens, config.eoi_token_id]
    end = len(tokens) + response
    tokens += torch.randint(6, config.text_config.vocab_size, (response,)).tolist()
    span = (end - response, end)
    return Example(tuple(tokens), (span,), "test", 0, images=tuple(images), starts=tuple(starts)), theirs


def encoder_states(reference, ids_S, cache, pictures):
    """Return the hidden states of the reference's encoder with the masks that its `generate` builds."""
    ids_BS = torch.tensor([ids_S])
    masks = reference.model.encoder.create_masks_for_generate(
        config=reference.config, inputs_embeds=torch.empty(*ids_BS.shape, 0), attention_mask=torch.ones_like(ids_BS),
        past_key_values=cache, position_ids=torch.arange(len(ids_S))[None],
        mm_token_type_ids=(ids_BS == reference.config.image_token_id).long(),
    )  # fmt: skip
    values, places = oracle.padded(pictures)
    return reference.model.encoder(
        input_ids=ids_BS, attention_mask=masks, past_key_values=cache, pixel_values=values, image_position_ids=places
    ).last_hidden_state[0]


def reference_loss(reference, example, theirs, clean_C, noisy_C, conditioned):
    """Return the loss of an example with one canvas, computed by the passes of the reference."""
    (start, end), tokens = example.spans[0], torch.tensor(example.tokens)
    cache = oracle.new_cache(reference)
    encoder_states(reference, example.tokens[:start], cache, theirs)
    arguments, before = {"decoder_input_ids": noisy_C[None], "past_key_values": cache}, None
    if conditioned:
        with torch.no_grad():
            before = reference(**arguments).logits
    decoder = F.cross_entropy(reference(**arguments, self_conditioning_logits=before).logits[0], clean_C)
    hidden_SH = encoder_states(reference, example.tokens, oracle.new_cache(reference), theirs)
    logits_SV = 30 * torch.tanh(reference.lm_head(hidden_SH).float() / 30)
    return decoder + F.cross_entropy(logits_SV[start - 1 : end - 1], tokens[start:end])


@pytest.mark.parametrize("pack", [False, True])
def test_loss_and_gradients_after_images_equal_the_reference(pair, pack):
    """The gradients of the tower are those that flow through its soft tokens."""
    reference, model = pair
    torch.manual_seed(5)
    length = model.config.canvas_length
    cases = [((4, 2), [(2, 2)], 3), ((1, 3, 2), [(1, 2), (2, 3)], length), ((9, 1), [(4, 5)], 2)]
    rows, theirs = zip(*(drawn(reference, *case) for case in cases), strict=True)
    batch = collate(
        rows, canvas_length=length, per_example=1, eos=EOS, pad=0, learn_text="response", seed=3, first=0, pack=pack,
        bidirectional_images=model.config.bidirectional_images,
    )  # fmt: skip
    noise = corrupt(batch, model.config.vocab_size, conditioning=0.5, seed=3, first=0)
    assert 0 < len(noise.conditioned) < len(rows)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    found = Objective(model, ObjectiveSettings())(batch, noise).total_B
    expected = torch.stack([
        reference_loss(reference, row, pictures, batch.clean_KC[b], noise.noisy_KC[b], b in noise.conditioned)
        for b, (row, pictures) in enumerate(zip(rows, theirs, strict=True))
    ])  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    found.mean().backward()
    expected.mean().backward()
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters(remove_duplicate=False)}
    compared = [name for name, _ in model.named_parameters() if gradients.get(checkpoint_name(name)) is not None]
    assert any(name.startswith("vision.tower.encoder") for name in compared)
    for name in compared:
        mine, other = model.get_parameter(name).grad, gradients[checkpoint_name(name)]
        assert (mine - other).abs().max() < 1e-4 * other.abs().max().clamp(min=1e-2), name


def test_images_see_each_other_only_if_the_model_is_so(pair):
    reference, model = pair
    row, _ = drawn(reference, (2, 1), [(2, 2)], 3)
    options = {"canvas_length": 4, "per_example": 1, "eos": EOS, "pad": 0, "learn_text": "all", "seed": 0, "first": 0}
    for bidirectional in (False, True):
        layout = collate([row], **options, bidirectional_images=bidirectional).layout
        _, high_T = layout.ranges(None)
        assert high_T[3:7].tolist() == ([7] * 4 if bidirectional else [4, 5, 6, 7])


def test_no_soft_token_is_a_target(pair):
    reference, model = pair
    row, _ = drawn(reference, (2, 1), [(2, 2)], 3)
    batch = collate(
        [row], canvas_length=4, per_example=1, eos=EOS, pad=0, learn_text="all", seed=0, first=0
    )  # fmt: skip
    assert batch.image_R.tolist() == [3, 4, 5, 6]
    assert batch.target_R.tolist() == [1, 2, *range(7, len(row.tokens))]


# --- runs -----------------------------------------------------------------------------------------------------------


RECIPE = """
[model]
path = "{model}"
{which}
[data]
files = ["{rows}"]
max_length = 128
[optimizer]
lr = 3e-3
[run]
out = "{out}"
steps = {steps}
batch_size = 4
save_every = 2
{extra}
"""


@pytest.fixture
def rows(tmp_path):
    for seed in range(4):
        (tmp_path / f"{seed}.png").write_bytes(picture(seed))
    lines = [asked(f"{seed}.png", answer) for seed, answer in enumerate(("one", "two", "three", "four"))]
    lines.append({"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def recipe(tmp_path, rows, model, out, steps, which="", extra=""):
    path = tmp_path / f"{out}.toml"
    filled = {"model": model, "rows": rows, "out": tmp_path / out, "steps": steps, "which": which, "extra": extra}
    path.write_text(RECIPE.format(**filled))
    return load(path)


def weights(seeing_model):
    model = load_weights(open_source(seeing_model), CPU, torch.float32)
    return {name: parameter.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("which", ["text", "vision", "all"])
def test_a_run_trains_the_chosen_weights_and_keeps_the_others(tmp_path, rows, seeing_model, which):
    train(recipe(tmp_path, rows, seeing_model, "out", 2, f'train = "{which}"'), lambda _: None)
    before, after = weights(seeing_model), weights(tmp_path / "out" / "model")
    assert before.keys() == after.keys(), "a checkpoint keeps its tower"
    changed = {name.startswith("vision.") for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"text": {False}, "vision": {True}, "all": {False, True}}[which]


def test_a_resumed_run_with_a_trained_tower_has_identical_losses(tmp_path, rows, seeing_model):
    for out, parts in (("whole", (None,)), ("parts", (0, 0, None))):
        for minutes in parts:  # 0: stop after a step
            train(recipe(tmp_path, rows, seeing_model, out, 4, 'train = "all"'), lambda _: None, minutes=minutes)
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")


def test_a_changed_picture_stops_a_run_from_being_resumed(tmp_path, rows, seeing_model):
    train(recipe(tmp_path, rows, seeing_model, "out", 2), lambda _: None)
    (tmp_path / "0.png").write_bytes(picture(9))
    with pytest.raises(InputError, match="a picture in the data has changed since the run in .*out was started"):
        train(recipe(tmp_path, rows, seeing_model, "out", 3), lambda _: None)


def test_an_adapter_learns_what_is_in_pictures(tmp_path, rows, seeing_model):
    """Only the images distinguish the rows, so the loss falls below that of answers without them."""
    only = recipe(
        tmp_path, rows, seeing_model, "out", 30, extra='[lora]\nrank = 8\nalpha = 16.0\ntargets = ["attention", "mlp"]'
    )
    only = replace(only, optimizer=replace(only.optimizer, lr=1e-2), run=replace(only.run, batch_size=5))
    train(only, lambda _: None)
    found = [loss for _, loss, _ in losses(tmp_path / "out")]
    assert sum(found[-5:]) < 0.6 * sum(found[:5])
    before = weights(seeing_model)
    with_adapter = gesso.load(seeing_model, adapter=tmp_path / "out" / "adapter")
    tower = dict(with_adapter.model.named_parameters())
    assert all(torch.equal(before[name], tower[name]) for name in before if name.startswith("vision."))


@pytest.mark.parametrize(
    ("which", "extra", "words"),
    [
        ('train = "vision"', "[lora]\nrank = 2\nalpha = 4.0", "an adapter has no place for it"),
        ('train = "tower"', "", 'train must be "text", "vision" or "all"'),
    ],
)
def test_impossible_choices_of_weights_are_rejected(tmp_path, rows, seeing_model, which, extra, words):
    with pytest.raises(InputError, match=words):
        recipe(tmp_path, rows, seeing_model, "out", 2, which, extra)


def test_a_tower_that_is_not_there_cannot_be_trained(tmp_path, seeing_model):
    blind, path = make(tmp_path / "blind"), tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n' * 4)
    with pytest.raises(InputError, match='model.train = "vision" needs a vision tower'):
        train(recipe(tmp_path, path, blind, "out", 2, 'train = "vision"'), lambda _: None)


@pytest.mark.parametrize("which", ["text", "vision"])
def test_a_frozen_tower_looks_at_each_image_once(tmp_path, rows, seeing_model, which):
    looks = []
    with watched(Vision, lambda *_: looks.append(1)):
        train(recipe(tmp_path, rows, seeing_model, "out", 5, f'train = "{which}"'), lambda _: None)
    assert len(looks) == 4 if which == "text" else len(looks) > 12


def test_held_out_rows_with_images_are_evaluated_and_sampled(tmp_path, rows, seeing_model):
    shown = []

    def answer(model, prompts):
        shown.extend(prompts)
        return ["" for _ in prompts]

    held = f'[held_out]\nevery = 2\nfiles = ["{rows}"]\nsamples = 1'
    train(recipe(tmp_path, rows, seeing_model, "out", 2, extra=held), lambda _: None, answer=answer)
    (sample,) = (json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines())
    assert (sample["prompt"], sample["expected"]) == ("What?", "one")
    assert len(shown[0].images) == 1 and blocks(shown[0].tokens)
