"""Images in messages: their place in the prompt, and content parts that are refused."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gesso import Image
from gesso.chat.image_parts import read_images
from gesso.chat.messages import check_messages, with_schema
from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.images.tokens import blocks, image_tokens, is_image
from tests.tiny import tokenizer_json

NAMES = ("<|image|>", "<|image>", "<image|>")
MARK, BEGIN, END = (json.loads(tokenizer_json())["model"]["vocab"][name] for name in NAMES)
# Reads content parts as Gemma 4's template does: text is trimmed, images are in line.
PARTS = """{%- for message in messages -%}
{{ message.role }}:{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content -%}
{{ '<|image|>' if part.type == 'image' else part.text | trim }}{{ part | length }}
{%- endfor %}{% endif %};
{%- endfor -%}"""


def image(value: int, tokens: int = 3) -> Image:
    return Image(np.full((9 * tokens, 48), value, np.uint8), rows=3, columns=3 * tokens, tokens=tokens)


def part(shown: Image) -> dict[str, Any]:
    return {"type": "image", "image": shown}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    return tmp_path


@pytest.fixture
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_directory(directory)


def with_template(directory: Path, template: str) -> Tokenizer:
    (directory / "chat_template.jinja").write_text(template)
    return Tokenizer.from_directory(directory)


def soft(shown: Image) -> list[int]:
    return [BEGIN, *image_tokens(shown.digest, shown.tokens), END]


def test_an_image_stands_where_its_part_is(tokenizer: Tokenizer) -> None:
    cat = image(1)
    prompt = tokenizer.chat([user(text("Look: "), part(cat), text(" What?"))])
    before = tokenizer.encode("<bos><|turn>user\nLook: ", bos=False)
    after = tokenizer.encode(" What?<turn|>\n<|turn>model\n", bos=False)
    assert prompt.tokens == before + soft(cat) + after
    assert prompt.images == (cat,)


def test_several_images_keep_their_order(tokenizer: Tokenizer) -> None:
    cat, dog = image(1), image(2, tokens=5)
    said = {"role": "assistant", "content": "A cat."}
    prompt = tokenizer.chat([user(part(cat)), said, user(part(dog), part(cat), text("And now?"))])
    assert prompt.images == (cat, dog, cat)
    shown = [prompt.tokens[block.start - 1 : block.stop + 1] for block in blocks(prompt.tokens)]
    assert shown == [soft(cat), soft(dog), soft(cat)]
    first = tokenizer.chat([user(part(cat))])
    same = len(tokenizer.encode("<bos><|turn>user\n", bos=False)) + len(soft(cat))
    assert prompt.tokens[:same] == first.tokens[:same], "a longer conversation begins as the shorter one"


def test_images_expand_as_in_the_processor_of_transformers(tokenizer: Tokenizer) -> None:
    from transformers.models.gemma4.processing_gemma4 import Gemma4Processor

    names = SimpleNamespace(**dict(zip(("image_token", "boi_token", "eoi_token"), NAMES, strict=True)))
    images = [image(value, tokens) for value, tokens in ((1, 3), (2, 64), (3, 1))]
    conversation = [user(part(images[0]), text(" or "), part(images[1]), text("?")), user(part(images[2]))]
    pieces = tokenizer.render(conversation).split(names.image_token)
    counts = {"num_soft_tokens_per_image": [one.tokens for one in images]}
    expanded = pieces[0] + "".join(
        Gemma4Processor.replace_image_token(names, counts, index) + piece for index, piece in enumerate(pieces[1:])
    )
    tokens = tokenizer.chat(conversation).tokens
    assert [MARK if is_image(token) else token for token in tokens] == tokenizer.encode(expanded, bos=False)


def test_a_template_that_reads_parts_gets_parts_without_pixels(directory: Path) -> None:
    tokenizer = with_template(directory, PARTS)
    cat = image(1)
    conversation = [user(text(" a "), part(cat), text(" b ")), {"role": "user", "content": " c "}]
    assert tokenizer.render(conversation) == "user:a2<|image|>1b2;user: c ;"
    expected = tokenizer.encode("user:a2", bos=False) + soft(cat) + tokenizer.encode("1b2;user: c ;", bos=False)
    assert tokenizer.chat(conversation).tokens == expected


def test_a_template_that_knows_text_only_gets_the_image_token_in_the_text(directory: Path) -> None:
    for template in ("{{ messages[0].content }}", "{{ messages[0].content + '!' }}"):
        tokenizer = with_template(directory, template)
        assert tokenizer.render([user(part(image(1)), text("b"))]).startswith("<|image|>b")


def test_a_template_that_leaves_an_image_out_is_an_error(directory: Path) -> None:
    problems = {
        "{{ messages[-1].content }}": "the chat template shows 1 of 2",
        "constant": "the chat template shows 0 of 2",
        "{{ raise_exception('no images') }}": "the chat template cannot render these messages: no images",
    }
    for template, problem in problems.items():
        tokenizer = with_template(directory, template)
        with pytest.raises(InputError, match=f"these images cannot be part of the prompt: {problem}"):
            tokenizer.chat([user(part(image(1))), user(part(image(2)))])


def test_the_default_template_has_no_place_for_images_in_tool_results(tokenizer: Tokenizer) -> None:
    result = {"role": "tool", "name": "see", "content": [part(image(1))]}
    with pytest.raises(InputError, match="the chat template shows 0 of 1; put them into messages of the user"):
        tokenizer.chat([user(text("Look.")), result])


@pytest.mark.parametrize("images", [0, 1, 2])
def test_text_that_spells_the_image_token_stays_text(directory: Path, images: int) -> None:
    spelled = "<|image|>"
    tool = {"name": "see", "description": spelled, "parameters": {"type": "object", "properties": {spelled: {}}}}
    call = {"id": "1", "function": {"name": "see", "arguments": {"what": spelled, spelled: [spelled]}}}
    shown = [part(image(i)) for i in range(images)]
    conversation = [
        {"role": "system", "content": spelled},
        user(text(f"{spelled}{spelled}"), *shown, text(spelled)),
        {"role": "assistant", "content": spelled, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": spelled},
        user(*shown, text("<|image|"), text(">")),  # joined, they spell it, too
    ]
    for tokenizer in (Tokenizer.from_directory(directory), with_template(directory, PARTS)):
        prompt = tokenizer.chat(conversation, tools=[tool])
        assert MARK not in prompt.tokens
        assert len(blocks(prompt.tokens)) == len(prompt.images) == 2 * images


def test_a_tokenizer_without_image_tokens_refuses_images(tmp_path: Path) -> None:
    data = json.loads(tokenizer_json())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] not in NAMES]
    for name in NAMES:
        data["model"]["vocab"][f"<unused {name}>"] = data["model"]["vocab"].pop(name)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"image_token": "<|image|>"}))
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.image_ids is None
    assert "<|image|>" in tokenizer.render([user(text("<|image|>"))])
    with pytest.raises(InputError, match="this model sees no images"):
        tokenizer.chat([user(part(image(1)))])


def test_a_schema_follows_the_images(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.chat(with_schema([user(part(image(1)), text("?"))], {"type": "object"}))
    assert [is_image(token) for token in prompt.tokens].count(True) == 3
    assert '{"type":"object"}' in tokenizer.decode([token for token in prompt.tokens if token >= 0])


def test_checked_messages_can_be_checked_again() -> None:
    checked = check_messages([user(text("a"), part(image(1)))])
    assert check_messages(checked) == checked


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([{"type": "input_audio", "input_audio": {}}], "reads no audio"),
        ([text("a"), {"type": "video_url"}], "[1]: the model reads no video; send frames"),
        ([{"type": "file"}], "files are not read"),
        ([{"type": "image", "image": "cat.png"}], "has not been read"),
        ([{"type": "image_url", "image_url": {"url": "x"}}], "has not been read"),
        ([{"type": ["image"]}], "expected {'type': 'text', 'text': ...}"),
        ([{"type": "text"}], "expected {'type': 'text', 'text': ...}"),
        (["text"], "expected {'type': 'text', 'text': ...}"),
        (7, "expected text or a list of parts"),
    ],
)
def test_other_content_is_refused_with_its_place(content: Any, expected: str) -> None:
    with pytest.raises(InputError, match=re.escape("messages[0].content")) as refused:
        check_messages([{"role": "user", "content": content}])
    assert expected in str(refused.value)


# --- reading ---


def read(content: Any) -> list[tuple[Any, str, int | None]]:
    """Return the arguments with which the images of a message are read."""
    calls: list[tuple[Any, str, int | None]] = []

    def reader(source: Any, where: str, budget: int | None) -> Image:
        calls.append((source, where, budget))
        return image(len(calls))

    (message,) = read_images([{"role": "user", "content": content}], reader)
    assert len([one for one in message["content"] if "image" in one]) == len(calls)
    return calls


def test_images_are_read_with_their_budget() -> None:
    url = {"type": "image_url", "image_url": {"url": "data:x"}}
    low = {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}
    content = (text("a"), {"type": "image", "image": b"x"}, {"type": "image", "image": b"y", "tokens": 1120})
    assert read([*content, url, low, {**low, "tokens": 140}, {"type": "image_url", "image_url": "data:z"}]) == [
        (b"x", "messages[0].content[1].image", None),
        (b"y", "messages[0].content[2].image", 1120),
        ("data:x", "messages[0].content[3].image_url.url", None),
        ("data:x", "messages[0].content[4].image_url.url", 70),
        ("data:x", "messages[0].content[5].image_url.url", 140),
        ("data:z", "messages[0].content[6].image_url.url", None),
    ]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"type": "image"}, "[0].image: expected a path"),
        ({"type": "image", "image": b"x", "token": 70}, "not 'token'"),
        (
            {"type": "image", "image": b"x", "tokens": 100},
            "[0].tokens: expected one of 70, 140, 280, 560, 1120, got 100",
        ),
        ({"type": "image", "image": b"x", "tokens": True}, "got True"),
        ({"type": "image_url"}, "[0].image_url: expected an object"),
        ({"type": "image_url", "image_url": {"url": 7}}, "[0].image_url: expected an object"),
        ({"type": "image_url", "image_url": {"url": "x", "detail": "best"}}, "expected one of low, auto, high"),
        ({"type": "image_url", "image_url": {"url": "x", "detail": ["low"]}}, "expected one of low, auto, high"),
    ],
)
def test_wrong_fields_of_an_image_are_refused_with_their_place(wrong: Any, expected: str) -> None:
    with pytest.raises(InputError, match=re.escape(expected)):
        read([wrong])


@pytest.mark.parametrize("messages", [None, "text", [7], [{"role": "user"}], [{"content": "a"}], []])
def test_reading_leaves_the_checks_of_messages_to_others(messages: Any) -> None:
    assert read_images(messages, lambda *_: image(1)) == messages
