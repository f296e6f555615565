"""Rows with images: reading them, the loss and its gradients, and whole runs.

S text, C canvas.
"""

import base64
import json
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import gesso
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.load import load as load_weights
from gesso.checkpoint.parameters import checkpoint_name
from gesso.checkpoint.source import open_source
from gesso.errors import InputError
from gesso.images.image import Image
from gesso.images.tokens import blocks
from gesso.model.transformer import DiffusionGemma
from gesso.train import data_report
from gesso.train.batch import collate, corrupt
from gesso.train.data import Dataset, Example
from gesso.train.held_out import choose, prompt_of, question
from gesso.train.image_rows import ImageReader, place_images
from gesso.train.objective import Objective
from gesso.train.recipe import DataSettings, ObjectiveSettings, load
from gesso.train.run import train
from tests import oracle
from tests.images.files import drawing, encoded
from tests.tiny import make
from tests.train.test_trainer import losses

CPU = torch.device("cpu")
EOS = 1


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


# --- rows -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    target = make(tmp_path_factory.mktemp("seeing") / "model", sees=True)
    raw = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(raw | {"canvas_length": 16}))
    return target


@pytest.fixture(scope="module")
def tokenizer(directory):
    return Tokenizer.from_directory(directory)


@pytest.fixture(scope="module")
def reader(directory, tokenizer):
    return ImageReader.of(open_source(directory), tokenizer)


def picture(seed=0, size=(60, 40)):
    return encoded(drawing(*size, seed=seed), "PNG")


def asked(image, answer="a cat", text="What?"):
    return {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]},
            {"role": "assistant", "content": answer},
        ]
    }


def dataset(folder, rows, tokenizer, reader, **settings):
    folder.mkdir(exist_ok=True)
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = DataSettings(files=(str(file),), **{"max_length": 4096, "on_bad_row": "skip", **settings})
    return Dataset(wanted, tokenizer, EOS, reader)


def test_a_row_has_the_prompt_of_a_chat_with_the_same_image(tmp_path, directory, tokenizer, reader):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "cat.png").write_bytes(picture())
    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    part = {"type": "image_url", "image_url": {"url": url}}
    rows = [asked("pictures/cat.png"), asked(str(tmp_path / "pictures" / "cat.png")), asked(url)]
    rows.append(
        {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}, *rows[0]["messages"][1:]]}
    )
    found = list(dataset(tmp_path, rows, tokenizer, reader).read())
    g = gesso.load(directory)
    for row, example in zip(rows, found, strict=True):
        spoken = rows[1]["messages"][:1]
        assert prompt_of(example).tokens == g.prompt(spoken).tokens
        (block,), (start, end) = blocks(prompt_of(example).tokens), example.spans[0]
        assert example.starts == (block.start,) and len(block) == example.images[0].tokens
        assert tokenizer.decode(example.tokens[start:end]).strip() == "a cat"
        assert row and question(example.tokens[:start], tokenizer) == "What?"


def test_an_image_of_many_rows_is_stored_once(tmp_path, tokenizer, reader):
    for name, seed in (("a.png", 0), ("b.png", 0), ("c.png", 1)):
        (tmp_path / name).write_bytes(picture(seed))
    data = dataset(tmp_path, [asked(name) for name in ("a.png", "b.png", "c.png", "a.png")], tokenizer, reader)
    assert not data.rejected and len(data.images) == 2
    digests = [example.images[0].digest for example in data.read()]
    assert digests[0] == digests[1] == digests[3] != digests[2]


def test_turns_between_images_stay_in_their_places(tmp_path, tokenizer, reader):
    (tmp_path / "a.png").write_bytes(picture())
    first, second = asked("a.png", "one")["messages"], asked("a.png", "two", "And?")["messages"]
    (example,) = dataset(tmp_path, [{"messages": [*first, *second]}], tokenizer, reader).read()
    answers = [tokenizer.decode(example.tokens[start:end]).strip() for start, end in example.spans]
    assert answers == ["one", "two"]
    mark = tokenizer.image_ids[0]
    for image, start in zip(example.images, example.starts, strict=True):
        around = example.tokens[start - 1 : start + image.tokens + 1]
        assert around == (tokenizer.image_ids[1], *[mark] * image.tokens, tokenizer.image_ids[2])


def test_llava_rows_have_their_images_where_they_are_marked(tmp_path, tokenizer, reader):
    for name, seed in (("a.png", 0), ("b.png", 1)):
        (tmp_path / name).write_bytes(picture(seed))
    turns = [{"from": "human", "value": "<image> or <image>?"}, {"from": "gpt", "value": "b"}]
    few, many = {"images": ["a.png"], "conversations": turns}, {"images": ["a.png"] * 3, "conversations": turns}
    data = dataset(tmp_path, [{"images": ["a.png", "b.png"], "conversations": turns}, few, many], tokenizer, reader)
    example, *_ = data.read()
    parts = [{"type": "image", "image": str(tmp_path / "a.png")}, {"type": "text", "text": " or "}]
    parts += [{"type": "image", "image": str(tmp_path / "b.png")}, {"type": "text", "text": "?"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "b"}]
    (same,) = dataset(tmp_path / "same", [{"messages": messages}], tokenizer, reader).read()
    assert prompt_of(example).tokens == prompt_of(same).tokens
    assert [row.reason for row in data.rejected] == [
        "images: a turn has 2 <image>, but only 1 images are left",
        "images: 1 are left after every <image> of the user; write one for each image",
    ]


def test_rows_with_unusable_images_are_rejected_with_the_reason(tmp_path, tokenizer, reader):
    (tmp_path / "a.png").write_bytes(picture())
    (tmp_path / "page.html").write_text("<html>")
    answer = {"role": "assistant", "content": [{"type": "image", "image": "a.png"}]}
    cases = [
        (asked("missing.png"), "missing.png cannot be read: No such file"),
        (asked("page.html"), "a web page"),
        (asked("https://example.com/a.png"), "URLs are not opened"),
        ({"messages": [*asked("a.png")["messages"][:1], answer]}, r"messages\[1\].content: a response is text"),
    ]
    data = dataset(tmp_path, [row for row, _ in cases], tokenizer, reader)
    for rejected, (_, words) in zip(data.rejected, cases, strict=True):
        assert re.search(words, rejected.reason), rejected
    (short,) = dataset(tmp_path, [asked("a.png")], tokenizer, reader, max_length=20).rejected
    assert short.reason.startswith("too long: ")
    (cut,) = dataset(tmp_path, [asked("a.png")], tokenizer, reader, prompt_lengths=(64,)).rejected
    assert "an image cannot be cut" in cut.reason


def test_a_model_without_a_tower_rejects_images(tmp_path, tokenizer):
    (tmp_path / "a.png").write_bytes(picture())
    blind = make(tmp_path / "blind")
    assert ImageReader.of(open_source(blind), Tokenizer.from_directory(blind)) is None
    (rejected,) = dataset(tmp_path, [asked("a.png")], tokenizer, None).rejected
    assert "the model sees no images: its checkpoint has no vision tower" in rejected.reason


def test_rows_that_differ_only_in_their_image_are_different_rows(tmp_path, tokenizer, reader):
    for seed in range(12):
        (tmp_path / f"{seed}.png").write_bytes(picture(seed))
    data = dataset(tmp_path, [asked(f"{seed}.png") for seed in range(12)], tokenizer, reader)
    assert len(choose(data)) == 2
    assert choose(dataset(tmp_path, [asked("0.png")] * 12, tokenizer, reader)) == []


def test_the_report_shows_one_token_for_an_image(tmp_path, tokenizer, reader):
    (tmp_path / "a.png").write_bytes(picture())
    report = data_report.inspect(dataset(tmp_path, [asked("a.png")], tokenizer, reader), tokenizer)
    assert report.samples[0].parts[0].text.count("<|image|>") == 1


def test_images_need_one_mark_each():
    image = Image(torch.zeros(9, 48, dtype=torch.uint8).numpy(), 3, 3, 1)
    assert place_images([7, 3, 8, 9], [(2, 4)], [image], (3, 4, 5)) == ([7, 4, 3, 5, 8, 9], [(4, 6)], [2])
    with pytest.raises(InputError, match="2 image tokens for 1 images"):
        place_images([3, 3], [], [image], (3, 4, 5))


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


def weights(directory):
    model = load_weights(open_source(directory), CPU, torch.float32)
    return {name: parameter.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("which", ["text", "vision", "all"])
def test_a_run_trains_the_chosen_weights_and_keeps_the_others(tmp_path, rows, directory, which):
    train(recipe(tmp_path, rows, directory, "out", 2, f'train = "{which}"'), lambda _: None)
    before, after = weights(directory), weights(tmp_path / "out" / "model")
    assert before.keys() == after.keys(), "a checkpoint keeps its tower"
    changed = {name.startswith("vision.") for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"text": {False}, "vision": {True}, "all": {False, True}}[which]


def test_a_resumed_run_with_a_trained_tower_has_identical_losses(tmp_path, rows, directory):
    for out, parts in (("whole", (None,)), ("parts", (0, 0, None))):
        for minutes in parts:  # 0: stop after a step
            train(recipe(tmp_path, rows, directory, out, 4, 'train = "all"'), lambda _: None, minutes=minutes)
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")


def test_a_changed_picture_stops_a_run_from_being_resumed(tmp_path, rows, directory):
    train(recipe(tmp_path, rows, directory, "out", 2), lambda _: None)
    (tmp_path / "0.png").write_bytes(picture(9))
    with pytest.raises(InputError, match="a picture in the data has changed since the run in .*out was started"):
        train(recipe(tmp_path, rows, directory, "out", 3), lambda _: None)


def test_an_adapter_learns_what_is_in_pictures(tmp_path, rows, directory):
    """Only the images distinguish the rows, so the loss falls below that of answers without them."""
    only = recipe(
        tmp_path, rows, directory, "out", 30, extra='[lora]\nrank = 8\nalpha = 16.0\ntargets = ["attention", "mlp"]'
    )
    only = replace(only, optimizer=replace(only.optimizer, lr=1e-2), run=replace(only.run, batch_size=5))
    train(only, lambda _: None)
    found = [loss for _, loss, _ in losses(tmp_path / "out")]
    assert sum(found[-5:]) < 0.6 * sum(found[:5])
    before = weights(directory)
    with_adapter = gesso.load(directory, adapter=tmp_path / "out" / "adapter")
    tower = dict(with_adapter.model.named_parameters())
    assert all(torch.equal(before[name], tower[name]) for name in before if name.startswith("vision."))


@pytest.mark.parametrize(
    ("which", "extra", "words"),
    [
        ('train = "vision"', "[lora]\nrank = 2\nalpha = 4.0", "an adapter has no place for it"),
        ('train = "tower"', "", 'train must be "text", "vision" or "all"'),
    ],
)
def test_impossible_choices_of_weights_are_rejected(tmp_path, rows, directory, which, extra, words):
    with pytest.raises(InputError, match=words):
        recipe(tmp_path, rows, directory, "out", 2, which, extra)


def test_a_tower_that_is_not_there_cannot_be_trained(tmp_path, directory):
    blind, path = make(tmp_path / "blind"), tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n' * 4)
    with pytest.raises(InputError, match='model.train = "vision" needs a vision tower'):
        train(recipe(tmp_path, path, blind, "out", 2, 'train = "vision"'), lambda _: None)


@pytest.mark.parametrize("which", ["text", "vision"])
def test_a_frozen_tower_looks_at_each_image_once(tmp_path, rows, directory, monkeypatch, which):
    looks, see = [], DiffusionGemma.see
    monkeypatch.setattr(DiffusionGemma, "see", lambda self, *given: looks.append(given) or see(self, *given))
    train(recipe(tmp_path, rows, directory, "out", 5, f'train = "{which}"'), lambda _: None)
    assert len(looks) == 4 if which == "text" else len(looks) > 12


def test_held_out_rows_with_images_are_evaluated_and_sampled(tmp_path, rows, directory):
    shown = []

    def answer(model, prompts):
        shown.extend(prompts)
        return ["" for _ in prompts]

    held = f'[held_out]\nevery = 2\nfiles = ["{rows}"]\nsamples = 1'
    train(recipe(tmp_path, rows, directory, "out", 2, extra=held), lambda _: None, answer=answer)
    (sample,) = (json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines())
    assert (sample["prompt"], sample["expected"]) == ("What?", "one")
    assert len(shown[0].images) == 1 and blocks(shown[0].tokens)
