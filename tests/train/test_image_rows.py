"""Training rows with images: the prompts they become, and unusable images."""

import base64
import json
import re

import pytest
import torch

import gesso
from gesso import Image
from gesso.chat.tokenizer import Tokenizer
from gesso.checkpoint.source import open_source
from gesso.errors import InputError
from gesso.images.tokens import blocks
from gesso.train import data_report
from gesso.train.data import Dataset
from gesso.train.held_out import choose, prompt_of, question
from gesso.train.image_rows import RowImageReader, place_images
from gesso.train.recipe import DataSettings
from tests.images.files import drawing, encoded
from tests.tiny import make
from tests.train.datasets import EOS


@pytest.fixture(scope="module")
def tokenizer(seeing_model):
    return Tokenizer.from_directory(seeing_model)


@pytest.fixture(scope="module")
def reader(seeing_model, tokenizer):
    return RowImageReader.of(open_source(seeing_model), tokenizer)


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


def test_a_row_has_the_prompt_of_a_chat_with_the_same_image(tmp_path, seeing_model, tokenizer, reader):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "cat.png").write_bytes(picture())
    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    part = {"type": "image_url", "image_url": {"url": url}}
    rows = [asked("pictures/cat.png"), asked(str(tmp_path / "pictures" / "cat.png")), asked(url)]
    rows.append(
        {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}, *rows[0]["messages"][1:]]}
    )
    found = list(dataset(tmp_path, rows, tokenizer, reader).read())
    g = gesso.load(seeing_model)
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
        "images: 1 have no <image> in a turn of the user; write one <image> per image",
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
    assert RowImageReader.of(open_source(blind), Tokenizer.from_directory(blind)) is None
    (rejected,) = dataset(tmp_path, [asked("a.png")], tokenizer, None).rejected
    assert "this model does not accept images: its checkpoint has no vision tower" in rejected.reason


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
