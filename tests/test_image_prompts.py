"""Images in the Python API and on the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gesso
from gesso.cli import chat
from gesso.errors import CheckpointError, InputError
from gesso.images.tokens import blocks, image_tokens
from tests.images.files import drawing, encoded
from tests.tiny import make
from tests.watched import Watched

SHORT: dict[str, Any] = {"steps": 2, "max_new_tokens": 8, "seed": 3}
OPTIONS = ["--steps", "2", "--max-new-tokens", "8", "--seed", "3"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("seeing") / "model", sees=True)


@pytest.fixture(scope="module")
def seeing(directory: Path) -> gesso.Gesso:
    return gesso.load(directory)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "a picture.png"
    path.write_bytes(encoded(drawing(60, 40), "PNG"))
    return path


def ask(source: Any, text: str = "What?", **fields: Any) -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": source, **fields}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


def test_a_chat_request_has_its_images(seeing: gesso.Gesso, picture: Path) -> None:
    request = seeing.chat_request(ask(picture), **SHORT)
    (image,), (block,) = request.images, blocks(request.prompt)
    assert request.prompt[block.start : block.stop] == image_tokens(image.digest, image.tokens)
    config, around = seeing.config, (request.prompt[block.start - 1], request.prompt[block.stop])
    assert around == (config.boi_token_id, config.eoi_token_id)
    assert image.patches.shape[1] == 3 * config.vision.patch_size**2
    for same in (str(picture), picture.read_bytes(), drawing(60, 40), image):
        assert seeing.chat_request(ask(same), **SHORT).prompt == request.prompt


def test_every_method_with_messages_takes_images(seeing: gesso.Gesso, picture: Path) -> None:
    image = seeing.read_image(picture)
    prompt = seeing.prompt(ask(picture))
    assert [one.digest for one in prompt.images] == [image.digest]
    decided = seeing.decision_request(ask(picture), [(1,), (2,)])
    written = seeing.request(prompt, **SHORT)
    for request in (decided, written):
        assert request.prompt == tuple(prompt.tokens) and [one.digest for one in request.images] == [image.digest]


def test_a_small_model_reads_pictures_of_any_shape(seeing: gesso.Gesso) -> None:
    for size in ((1, 1), (300, 2), (2, 300), (50, 40)):
        image = seeing.read_image(drawing(*size), 1120)
        assert max(image.rows, image.columns) <= seeing.config.vision.position_embedding_size


def test_a_model_without_a_tower_says_that_it_sees_no_images(tiny: gesso.Gesso, directory: Path, picture: Path) -> None:
    for model in (tiny, gesso.load(directory, text_only=True)):
        expected = r"^messages\[0\]\.content\[0\]\.image: this model sees no images: .* or leave the image out"
        with pytest.raises(InputError, match=expected):
            model.chat(ask(picture))
        with pytest.raises(InputError, match=expected):
            model.decide(ask(picture), ["yes", "no"])


def test_different_image_tokens_in_config_and_tokenizer_are_refused(directory: Path, tmp_path: Path) -> None:
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"boi_token_id": 5}))
    with pytest.raises(CheckpointError, match="different tokens for images"):
        gesso.load(tmp_path).read_image(drawing(5, 5))


def test_answers_depend_on_the_image_and_on_nothing_else(seeing: gesso.Gesso, picture: Path) -> None:
    answer = seeing.chat(ask(picture), **SHORT)
    assert seeing.chat(ask(picture.read_bytes()), **SHORT).tokens == answer.tokens
    assert seeing.generate(seeing.prompt(ask(picture)), **SHORT).tokens == answer.tokens
    other = drawing(60, 40).transpose(1)
    assert seeing.chat(ask(other), **SHORT).tokens != answer.tokens
    odds = [seeing.decide(ask(source), ["yes", "no"]).probabilities for source in (picture, other)]
    assert odds[0] != odds[1] and odds[0] == seeing.decide(ask(picture), ["yes", "no"]).probabilities


# --- command line ---


def test_wrong_pictures_are_one_line_and_exit_code_2_before_loading(main, tmp_path: Path, tiny_directory: Path) -> None:
    (tmp_path / "page.svg").write_text("<svg/>")
    cases = {
        ("--image", "nowhere.png"): "gesso: nowhere.png cannot be read: No such file or directory\n",
        ("--image", str(tmp_path)): f"gesso: {tmp_path} cannot be read: Is a directory\n",
        ("--image", str(tmp_path / "page.svg")): f"gesso: {tmp_path / 'page.svg'}: this is an SVG",
        ("--image-tokens", "100"): "gesso: --image-tokens must be one of 70, 140, 280, 560, 1120, got 100\n",
    }
    for wrong, expected in cases.items():
        for command in (["chat", "-p", "What?"], ["decide", "What?", "--choice", "a", "--choice", "b"]):
            done = main(*command, *wrong, "-m", "no-such-model")
            assert (done.code, done.out) == (2, "") and done.err.startswith(expected)
            assert done.err.count("\n") == 1
    done = main("chat", "-p", " ", "-m", str(tiny_directory))
    assert (done.code, done.err) == (2, "gesso: --prompt is empty; give a message to answer\n")


def test_a_model_without_a_tower_refuses_pictures_in_one_line(main, tiny_directory: Path, picture: Path) -> None:
    done = main("chat", "--image", str(picture), "-p", "What?", "-m", str(tiny_directory))
    assert done.code == 2 and done.err.startswith(f"gesso: {picture}: this model sees no images: ")
    assert done.err.count("\n") == 1


def test_prompt_answers_one_message_and_leaves(main, tiny: gesso.Gesso, tiny_directory: Path) -> None:
    done = main("chat", "-p", "one", "--json", *OPTIONS, "-m", str(tiny_directory), stdin="two\n")
    (line,) = done.out.splitlines()
    assert json.loads(line)["tokens"] == list(tiny.chat([{"role": "user", "content": "one"}], **SHORT).tokens)


def test_chat_and_decide_show_pictures_of_the_command_line(
    main, seeing: gesso.Gesso, directory: Path, picture: Path
) -> None:
    given = ["--image", str(picture), "--image-tokens", "70", "-m", str(directory)]
    done = main("chat", *given, "-p", "What?", "--json", *OPTIONS)
    expected = seeing.chat(ask(picture, tokens=70), **SHORT)
    assert json.loads(done.out)["tokens"] == list(expected.tokens)
    done = main("chat", *given, "--json", *OPTIONS, stdin="What?\nWhy?\n")
    first, second = (json.loads(line) for line in done.out.splitlines())
    assert first["tokens"] == list(expected.tokens), "with the first message"
    history = [*ask(picture, tokens=70), {"role": "assistant", "content": expected.text}]
    expected = seeing.chat([*history, {"role": "user", "content": "Why?"}], **SHORT)
    assert second["tokens"] == list(expected.tokens), "and not with the second"
    done = main("decide", "What?", "--choice", "yes", "--choice", "no", *given, "--json")
    assert json.loads(done.out)["probabilities"] == seeing.decide(ask(picture, tokens=70), ["yes", "no"]).probabilities
    done = main("decide", "What?", "--continue", "--choice", "yes", "--choice", "no", *given)
    assert (done.code, done.err) == (2, "gesso: --image belongs to a question; leave out --continue\n")


def test_image_shows_pictures_with_the_next_message(
    seeing: gesso.Gesso, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    stops: list[bool] = []

    def chat_request(request: Callable[..., Any], messages: Any, **given: Any) -> Any:
        asked.append(messages)
        return request(messages, **given)

    def shown() -> list[int]:
        """Return the digests of the images in the last question."""
        content = asked[-1][-1]["content"]
        return (
            [part["image"].digest for part in content if part["type"] == "image"] if isinstance(content, list) else []
        )

    def events(events: Callable[..., Any], request: Any, **given: Any) -> Any:
        if stops:
            raise KeyboardInterrupt
        return events(request, **given)

    another = picture.with_name("another picture.png")
    another.write_bytes(encoded(drawing(30, 30, seed=1), "PNG"))
    a, b = (seeing.read_image(path, 70).digest for path in (picture, another))
    conversation = chat.Conversation(
        Watched(seeing, chat_request=chat_request, events=events), SHORT, system=None, image_tokens=70
    )
    conversation.handle(f"/image '{picture}'")
    assert f"the next message shows {picture} (" in capsys.readouterr().err
    stops.append(True)
    with pytest.raises(KeyboardInterrupt):
        conversation.handle("What?")
    stops.clear()
    assert shown() == [a] and len(conversation.images) == 1, "they wait for a question that is answered"
    conversation.handle("/image " + str(another).replace(" ", "\\ "))
    conversation.handle("/retry")
    assert shown() == [a]
    conversation.handle("Why?")
    assert shown() == [b]
    conversation.handle("Who?")
    assert shown() == []
    for wrong in ("/image nowhere.png", "/image 'a", f"/image '{picture}' nowhere.png"):
        with pytest.raises(InputError, match=r"nowhere.png cannot be read|quotes"):
            conversation.handle(wrong)
    assert conversation.images == []
    conversation.handle(f"/image '{picture}'")
    conversation.handle("/reset")
    assert conversation.images == []
    conversation.handle("/image")
    assert "no such command" in capsys.readouterr().err
